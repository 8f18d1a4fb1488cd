//! Automatic placement: the layers of a model in order, cut so that every device gets about the same bytes of states and saved
//! activations, and little passes between them. It is a function of the training step and the number of devices: lines, threads and
//! speeds do not move a layer.

use plimsoll_graph::{Graph, Origin, Role, ValueId};
use plimsoll_transform::LOSS;
use std::collections::HashMap;

/// A device's share may be larger than the smallest possible by so many percent, if less passes between devices then.
const TOLERANCE_PERCENT: u64 = 10;

/// The layers of a model in the order in which they compute, with what they take in training.
pub(super) struct LayerBytes {
    pub names: Vec<String>,
    /// Bytes of states, and of values that backward reads.
    held: Vec<u64>,
    /// Bytes that pass, in forward, between the layers before each one and the others.
    passed: Vec<u64>,
}

impl LayerBytes {
    /// Of a model by its prediction steps, of which further ones are for other inputs, and its training step.
    pub fn new(forward: &[Graph], training: &Graph) -> Self {
        let mut names: Vec<String> = Vec::new();
        for graph in forward {
            order_layers(graph, &mut names);
        }
        let place: HashMap<&str, usize> =
            names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let (mut held, mut passed) = (vec![0; names.len()], vec![0; names.len()]);
        let state_layer = |name: &str| {
            let mut ends = name.match_indices('/').map(|(end, _)| end).rev();
            ends.find_map(|end| place.get(&name[..end]).copied())
        };
        // The layer that has each value of forward.
        let mut home: Vec<Option<usize>> = vec![None; training.value_count()];
        for state in &training.states {
            let layer = state_layer(&state.name);
            if let Some(layer) = layer {
                held[layer] += training.ty(state.input).bytes() as u64;
            }
            home[state.input.index()] = layer.filter(|_| is_weight(state.role));
        }
        let loss = training.outputs.iter().find(|output| output.name == LOSS);
        let loss = loss.and_then(|output| training.producer(output.value));
        let forward = loss.map_or(training.nodes.len(), |node| node.index() + 1);
        // The first and the last layer of forward that has or reads each value.
        let mut span: Vec<Option<(usize, usize)>> =
            home.iter().map(|layer| layer.map(|at| (at, at))).collect();
        for node in &training.nodes[..forward] {
            let Some(&layer) = place.get(&*node.layer) else { continue };
            for value in node.reads() {
                if let Some((first, last)) = &mut span[value.index()] {
                    (*first, *last) = ((*first).min(layer), (*last).max(layer));
                }
            }
            for value in &node.outputs {
                (home[value.index()], span[value.index()]) = (Some(layer), Some((layer, layer)));
            }
        }
        let mut saved = vec![false; training.value_count()];
        training.nodes[forward..].iter().flat_map(|node| node.reads()).for_each(|v| saved[v.index()] = true);
        // A view has no memory of its own: what it is a view of is kept for it.
        for node in training.nodes[..forward].iter().rev().filter(|node| node.op.is_view()) {
            let kept = node.outputs.iter().any(|v| std::mem::take(&mut saved[v.index()]));
            node.inputs.iter().for_each(|v| saved[v.index()] |= kept);
        }
        for value in training.value_ids() {
            let bytes = training.ty(value).bytes() as u64;
            if let (true, Some(layer)) =
                (saved[value.index()] && is_computed(training, value), home[value.index()])
            {
                held[layer] += bytes;
            }
            if let Some((first, last)) = span[value.index()] {
                passed[first + 1..=last].iter_mut().for_each(|passed| *passed += bytes);
            }
        }
        Self { names, held, passed }
    }

    /// The device of each layer; `None` if there are fewer layers than devices.
    pub fn cut(&self, devices: usize) -> Option<Vec<usize>> {
        cut(&self.held, &self.passed, devices)
    }
}

fn is_weight(role: Role) -> bool {
    matches!(role, Role::Parameter | Role::Statistic)
}

fn is_computed(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.origin(value), Origin::Node { .. })
}

/// Adds the layers of a graph in the order in which they compute; one that only holds parameters comes before the first that reads one.
fn order_layers(graph: &Graph, names: &mut Vec<String>) {
    let mut add = |layer: &str| {
        if !layer.is_empty() && !names.iter().any(|known| known == layer) {
            names.push(layer.to_string());
        }
    };
    for node in &graph.nodes {
        for value in node.reads() {
            if let Origin::State(i) = graph.origin(value)
                && is_weight(graph.states[i].role)
            {
                add(&super::placement::layer_of(&graph.states[i].name));
            }
        }
        add(&node.layer);
    }
}

/// Cuts layers into as many runs as there are devices: the largest run holds as little as possible, within [`TOLERANCE_PERCENT`]; of such
/// cuts, those that the fewest bytes pass, then those with the smallest largest run, then the earliest.
fn cut(held: &[u64], passed: &[u64], devices: usize) -> Option<Vec<usize>> {
    let layers = held.len();
    if devices == 0 || layers < devices {
        return None;
    }
    let mut before = vec![0; layers + 1];
    held.iter().enumerate().for_each(|(at, bytes)| before[at + 1] = before[at] + bytes);
    // `least[end]`: the largest run of the first `end` layers on so many devices as were looked at.
    let mut least: Vec<u64> = before.clone();
    for _ in 1..devices {
        for end in (1..=layers).rev() {
            let last = (0..end).map(|start| least[start].max(before[end] - before[start]));
            least[end] = last.min().unwrap_or(u64::MAX);
        }
    }
    let limit = least[layers].saturating_add(least[layers] / 100 * TOLERANCE_PERCENT);
    // By devices and end: bytes that pass, the largest run, and where the last run starts.
    type Best = Option<(u64, u64, usize)>;
    let mut best: Vec<Vec<Best>> = vec![vec![None; layers + 1]; devices + 1];
    best[0][0] = Some((0, 0, 0));
    for device in 1..=devices {
        for end in device..=layers {
            let runs = (device - 1..end).filter_map(|start| {
                let (bytes, largest, _) = best[device - 1][start]?;
                let run = before[end] - before[start];
                let passed = if start == 0 { 0 } else { passed[start] };
                (run <= limit).then(|| (bytes + passed, largest.max(run), start))
            });
            best[device][end] = runs.min();
        }
    }
    let (mut found, mut end) = (vec![0; layers], layers);
    for device in (1..=devices).rev() {
        let (_, _, start) = best[device][end]?;
        found[start..end].fill(device - 1);
        end = start;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_tensor::random::Lcg;

    /// Every way to cut layers, each as the starts of the runs.
    fn all_cuts(layers: usize, devices: usize) -> Vec<Vec<usize>> {
        if devices == 1 {
            return vec![vec![0]];
        }
        let shorter =
            |last: usize| all_cuts(last, devices - 1).into_iter().map(move |cut| [cut, vec![last]].concat());
        (devices - 1..layers).flat_map(shorter).collect()
    }

    #[test]
    fn cuts_are_the_best_of_all() {
        let mut random = Lcg::new(5);
        for case in 0..300 {
            let (layers, devices) = (1 + random.below(9), 1 + random.below(4));
            let held: Vec<u64> = (0..layers).map(|_| 1000 * random.below(9) as u64).collect();
            let passed: Vec<u64> = (0..layers).map(|_| random.below(5) as u64).collect();
            let found = cut(&held, &passed, devices);
            if layers < devices {
                assert_eq!(found, None);
                continue;
            }
            let largest = |starts: &[usize]| {
                let ends = starts.iter().skip(1).copied().chain([layers]);
                starts
                    .iter()
                    .zip(ends)
                    .map(|(&start, end)| held[start..end].iter().sum::<u64>())
                    .max()
                    .unwrap()
            };
            let cuts = all_cuts(layers, devices);
            let least = cuts.iter().map(|starts| largest(starts)).min().unwrap();
            let allowed = cuts.iter().filter(|starts| largest(starts) <= least + least / 10);
            let bytes = |starts: &[usize]| starts[1..].iter().map(|&start| passed[start]).sum::<u64>();
            let wanted = allowed.map(|starts| (bytes(starts), largest(starts))).min().unwrap();
            let found = found.unwrap();
            let starts: Vec<usize> =
                (0..layers).filter(|&at| at == 0 || found[at] != found[at - 1]).collect();
            assert_eq!((starts.len(), found[0]), (devices, 0), "case {case}");
            assert_eq!(
                (bytes(&starts), largest(&starts)),
                wanted,
                "case {case}: {held:?} {passed:?} {found:?}"
            );
        }
    }
}
