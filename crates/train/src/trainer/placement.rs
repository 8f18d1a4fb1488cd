//! Placement: which layers of a model are on which logical device.

use super::auto_placement::LayerBytes;
use super::{BatchKind, DeviceName, LogicalDevices, Replication, Trainer};
use crate::TrainError;
use crate::suggestion::suggestion;
use plimsoll_graph::{Graph, Numerics, Role};
use plimsoll_nn::{Model, Pattern, step};
use plimsoll_plan::Whole;
use plimsoll_transform::{Placing, Reduction, Shard, accumulate, partition, unroll};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Layers that an error names at most.
const NAMED: usize = 4;

/// Which layers of a model are on which logical device, by rules like `block[0-5].*=cuda:0`: a pattern of layer names and a device. The
/// first rule that matches a layer decides. A pattern matches a layer with everything inside it; `*` stands for any letters and `[0-5]` for
/// one of them. The rule `auto=cpu:0-2`, by itself, is [`Placement::auto`]; `auto=cuda:0,cpu` is the same for these devices, in this order.
///
/// ```
/// use plimsoll_train::{DeviceName, Placement};
/// let placement = Placement::new(["block[0-5].*=cuda:0", "*=cpu"])?;
/// assert_eq!(placement.device("block3/attention"), Some(DeviceName::Cuda(0)));
/// assert_eq!(placement.device("head"), Some(DeviceName::Cpu(0)));
/// assert!(Placement::new(["head"]).is_err());
/// assert_eq!(Placement::new(["auto=cpu:0-2"])?, Placement::auto(3)?);
/// # Ok::<(), plimsoll_train::TrainError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    rules: Vec<Rule>,
    /// The devices that the layers of a model are to be cut for, in order; none where there are rules.
    auto: Vec<DeviceName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// As it was given.
    text: String,
    pattern: Pattern,
    device: DeviceName,
}

impl Placement {
    /// Rules, the first one first.
    pub fn new<S: AsRef<str>>(rules: impl IntoIterator<Item = S>) -> Result<Self, TrainError> {
        let rules: Vec<S> = rules.into_iter().collect();
        let words: Vec<&str> = rules.iter().map(|rule| rule.as_ref().trim()).collect();
        match &words[..] {
            [] => return Err(TrainError::Setting("a placement needs a rule, like *=cpu:0".into())),
            ["auto"] => return Self::auto(2),
            // Devices after the first may have been separated from it.
            [first, more @ ..]
                if first.starts_with("auto=") && more.iter().all(|word| !word.contains('=')) =>
            {
                return Self::auto_on(&words.join(","));
            }
            _ => {}
        }
        if words.iter().any(|word| *word == "auto" || word.starts_with("auto=")) {
            return Err(TrainError::Setting("`auto` places every layer: leave the other rules out".into()));
        }
        let rules = words.into_iter().map(Rule::parse).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { rules, auto: Vec::new() })
    }

    /// The layers of the model in order, cut so that each of so many devices of the CPU holds about as many bytes of states and saved
    /// activations as the others, and little passes between them. It depends on model, optimizer, batch and devices, never on lines.
    pub fn auto(devices: usize) -> Result<Self, TrainError> {
        match devices {
            1..=LogicalDevices::MOST => {
                Ok(Self { rules: Vec::new(), auto: (0..devices).map(DeviceName::Cpu).collect() })
            }
            _ => Err(TrainError::Setting(format!(
                "layers are placed on 1 to {} devices",
                LogicalDevices::MOST
            ))),
        }
    }

    /// The same of a rule like `auto=cpu:0-3` or `auto=cuda:0,cpu`.
    fn auto_on(rule: &str) -> Result<Self, TrainError> {
        let list = rule.trim_start_matches("auto=");
        let found = list.split(',').map(devices_of).collect::<Option<Vec<_>>>().map(|all| all.concat());
        let distinct = |all: &Vec<DeviceName>| (1..all.len()).all(|at| !all[..at].contains(&all[at]));
        let auto = found.filter(distinct).ok_or_else(|| {
            let most = LogicalDevices::MOST - 1;
            TrainError::Setting(format!(
                "the rule `{rule}` names no devices: name them like auto=cpu:0-1, up to cpu:{most}, or auto=cuda:0,cpu"
            ))
        })?;
        Ok(Self { rules: Vec::new(), auto })
    }

    /// The device of a layer, if a rule matches it.
    pub fn device(&self, layer: &str) -> Option<DeviceName> {
        self.rules.iter().find(|rule| rule.matches(layer)).map(|rule| rule.device)
    }

    /// The devices that it needs: those of the CPU up to the one with the highest number, then the others.
    pub fn devices(&self) -> Vec<DeviceName> {
        let named: BTreeSet<DeviceName> =
            self.rules.iter().map(|rule| rule.device).chain(self.auto.iter().copied()).collect();
        let last = named.iter().rev().find_map(|name| match name {
            DeviceName::Cpu(number) => Some(*number),
            DeviceName::Cuda(_) => None,
        });
        let processors = (0..last.map_or(0, |last| last + 1)).map(DeviceName::Cpu);
        let others = named.iter().copied().filter(|name| !matches!(name, DeviceName::Cpu(_)));
        processors.chain(others).collect()
    }
}

/// A device, or several like `cpu:0-3`.
fn devices_of(text: &str) -> Option<Vec<DeviceName>> {
    let Some((first, last)) = text.split_once('-') else { return text.parse().ok().map(|name| vec![name]) };
    let (first, last) = (first.parse().ok()?, last.rsplit(':').next()?.parse::<usize>().ok()?);
    if last >= LogicalDevices::MOST {
        return None;
    }
    let all: Vec<DeviceName> = match first {
        DeviceName::Cpu(first) => (first..=last).map(DeviceName::Cpu).collect(),
        DeviceName::Cuda(first) => (first..=last).map(DeviceName::Cuda).collect(),
    };
    Some(all).filter(|all| !all.is_empty())
}

impl Rule {
    fn parse(text: &str) -> Result<Self, TrainError> {
        let wrong = |reason: String| TrainError::Setting(format!("the rule `{text}` {reason}"));
        let parts = text.rsplit_once('=').filter(|(pattern, _)| !pattern.trim().is_empty());
        let (pattern, device) = parts.ok_or_else(|| {
            wrong("is no LAYERS=DEVICE: name layers and a device, like block[0-5].*=cpu:0".into())
        })?;
        let device = device.trim().parse::<DeviceName>().map_err(wrong)?;
        let pattern = pattern.trim();
        // A layer is matched with everything inside it.
        let inside = pattern.strip_suffix(".*").or_else(|| pattern.strip_suffix("/*")).unwrap_or(pattern);
        let pattern = Pattern::new(inside.replace('.', "/"));
        Ok(Self { text: text.trim().to_string(), pattern, device })
    }

    /// Names may have dots or slashes between layers.
    fn matches(&self, layer: &str) -> bool {
        self.pattern.matches(&layer.replace('.', "/"))
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.auto.len();
        if count > 0 && self.auto.iter().copied().eq((0..count).map(DeviceName::Cpu)) {
            return write!(f, "auto=cpu:0-{}", count - 1);
        }
        if count > 0 {
            let names: Vec<String> = self.auto.iter().map(ToString::to_string).collect();
            return write!(f, "auto={}", names.join(","));
        }
        let rules: Vec<&str> = self.rules.iter().map(|rule| rule.text.as_str()).collect();
        f.write_str(&rules.join(","))
    }
}

/// A placement of the layers of one model.
#[derive(Debug)]
pub(crate) struct PlacedModel {
    placement: Placement,
    /// The device of every parameter and statistic, by name.
    states: BTreeMap<String, usize>,
    /// The device of the last layer.
    last: usize,
}

impl PlacedModel {
    /// The device of a state: what belongs to a parameter is where that is, and what belongs to none is with the last layer.
    fn state(&self, name: &str) -> usize {
        let ends = name.match_indices('/').map(|(place, _)| place).chain([name.len()]);
        let found = ends.rev().find_map(|end| self.states.get(&name[..end]));
        found.copied().unwrap_or(self.last)
    }
}

/// What can be placed.
#[derive(Default)]
struct Layers {
    names: Vec<String>,
    /// The names of parameters and statistics.
    parameters: Vec<String>,
    /// The layer that computes last.
    last: String,
}

impl Layers {
    fn add(&mut self, layer: &str) {
        if !layer.is_empty() && !self.names.iter().any(|known| known == layer) {
            self.names.push(layer.to_string());
        }
    }
}

impl Trainer {
    /// Puts the layers of the model on several devices, by name: each holds the parameters and the optimizer state of its layers, and computes
    /// them, forward, backward and update; evaluation and prediction, too. Values pass between devices, so results on devices of one kind have
    /// the bits of one device; on several kinds they depend on where layers are. Each device has a line of its own
    /// ([`LogicalDevices::set_memory`]), which never changes where a layer is.
    ///
    /// What is no layer of the model, like `loss` and the norm of all gradients, `clip`, is where a rule puts it, or else where the first
    /// value that it reads is. A state that belongs to no layer is with the last one.
    ///
    /// ```
    /// use plimsoll_data::datasets;
    /// use plimsoll_nn::{AdamW, zoo};
    /// use plimsoll_train::{LogicalDevices, Placement, Trainer};
    /// let data = datasets::mnist()?;
    /// let trainer = || Trainer::new(zoo::lenet(), AdamW::new(1e-3)).steps(2);
    /// let placement = Placement::new(["conv*=cpu:0", "*=cpu:1"])?;
    /// let mut one = trainer().threads(1).plan(&data)?.start()?;
    /// let mut two = trainer().place(&LogicalDevices::cpu(2, 1)?, placement).plan(&data)?.start()?;
    /// assert_eq!(one.fit()?.final_loss, two.fit()?.final_loss);
    /// # Ok::<(), plimsoll_train::TrainError>(())
    /// ```
    pub fn place(self, devices: &LogicalDevices, placement: Placement) -> Self {
        let (devices, placement) = (devices.clone(), Rc::new(placement));
        let replication = Replication::Placed { devices, device: 0, placement, model: None, overlaps: false };
        Self { replication: Some(replication), ..self }
    }

    /// Where the layers of the model are, if they are placed: by rules, also if it is automatic.
    ///
    /// # Errors
    /// If the rules do not fit the model.
    pub fn placement(&self) -> Result<Option<Placement>, TrainError> {
        match self.is_placed() {
            true => Ok(Some(self.placed_model()?.placement.clone())),
            false => Ok(None),
        }
    }

    /// Whether devices hold parts of the model.
    pub(crate) fn is_placed(&self) -> bool {
        matches!(self.replication, Some(Replication::Placed { .. }))
    }

    /// Puts the states of a placed run in the order that they have on one device, so that its files do not depend on the placement.
    pub(crate) fn sort_states(&self, whole: &mut Whole) -> Result<(), TrainError> {
        if self.is_placed() {
            let names: Vec<String> =
                self.training_step()?.states.into_iter().map(|state| state.name).collect();
            whole.sort_states(|name| names.iter().position(|own| own == name).unwrap_or(names.len()));
        }
        Ok(())
    }

    /// The part of a step that one device of a placed run has; for other runs the step.
    pub(super) fn part_of(&self, step: Graph) -> Result<Graph, TrainError> {
        let Some(Replication::Placed { device, .. }) = &self.replication else { return Ok(step) };
        Ok(self.placing(|placing| partition(&step, placing))??.swap_remove(*device))
    }

    /// A step of one micro-batch as one of several, which flow through the devices where they overlap.
    pub(super) fn in_micro_batches(&self, step: &Graph, micro_batches: usize) -> Result<Graph, TrainError> {
        match self.replication {
            Some(Replication::Placed { overlaps: true, .. }) => {
                Ok(self.placing(|placing| unroll(step, micro_batches, placing))??)
            }
            _ => Ok(accumulate(step, micro_batches)?),
        }
    }

    /// Where the parts of a placed run are.
    fn placing<T>(&self, of: impl FnOnce(&Placing<'_>) -> T) -> Result<T, TrainError> {
        let (devices, model) = (self.logical_devices()?, self.placed_model()?);
        Ok(of(&Placing {
            devices: devices.len(),
            layer: &|layer| devices.index(model.placement.device(layer)?),
            state: &|name| model.state(name),
            other: model.last,
        }))
    }

    /// Refuses runs that cannot be placed, and settles where the layers are.
    pub(super) fn check_placed(&self) -> Result<Self, TrainError> {
        let refused = |reason: &str| Err(TrainError::Setting(reason.into()));
        if self.shard != Shard::None {
            return refused(
                "states are sharded over processes, not over the devices of one: use ranks, or leave sharding out",
            );
        }
        if self.reduction == Reduction::Fast {
            return refused("placed layers add nothing up between devices: leave the reduction out");
        }
        let model = Some(self.placed_model()?);
        let replication = match self.replication.clone() {
            Some(Replication::Placed { devices, device, placement, overlaps, .. }) => {
                Some(Replication::Placed { devices, device, placement, model, overlaps })
            }
            other => other,
        };
        Ok(Self { replication, ..self.clone() })
    }

    /// Where the layers of the model are; an error for rules that do not fit it.
    fn placed_model(&self) -> Result<Rc<PlacedModel>, TrainError> {
        let Some(Replication::Placed { devices, placement, model, .. }) = &self.replication else {
            return Err(TrainError::Setting("the run has no placement".into()));
        };
        if let Some(model) = model {
            return Ok(model.clone());
        }
        let settled;
        let placement = match &placement.auto[..] {
            [] => placement.as_ref(),
            names => {
                settled = self.cut_layers(names)?;
                &settled
            }
        };
        let wrong = |reason: String| Err(TrainError::Setting(reason));
        let Layers { names: layers, parameters, last } = self.layers()?;
        let training = self.training_step()?;
        // The loss and its like can be named, too.
        let others = training.nodes.iter().map(|node| node.layer.as_ref()).filter(|layer| !layer.is_empty());
        let all: Vec<&str> = layers.iter().map(String::as_str).chain(others).collect();
        for rule in &placement.rules {
            if devices.index(rule.device).is_none() {
                let (text, device, all) = (&rule.text, rule.device, devices.in_words());
                return wrong(format!("the rule `{text}` names {device}: the devices are {all}"));
            }
            if !all.iter().any(|layer| rule.matches(layer)) {
                let pattern = rule.pattern.to_string();
                let near = suggestion(&pattern, layers.iter().map(String::as_str));
                let near = near.map_or(String::new(), |near| format!(", the nearest is `{near}`"));
                return wrong(format!(
                    "the rule `{}` matches no layer{near}; the layers are {}",
                    rule.text,
                    some(&layers)
                ));
            }
        }
        let uncovered: Vec<String> =
            layers.iter().filter(|layer| placement.device(layer).is_none()).cloned().collect();
        if !uncovered.is_empty() {
            return wrong(format!(
                "no rule says where {} {}: add one, or *=cpu:0 as the last one",
                some(&uncovered),
                if uncovered.len() == 1 { "is" } else { "are" }
            ));
        }
        let used: Vec<DeviceName> = all.iter().filter_map(|layer| placement.device(layer)).collect();
        if let Some(empty) = devices.names().find(|device| !used.contains(device)) {
            let count = devices.len();
            return wrong(format!(
                "no layer is on {empty} of {count} devices: place one there, or use fewer devices"
            ));
        }
        let index = |layer: &str| devices.index(placement.device(layer)?);
        let last = index(&last).unwrap_or(0);
        let device = |parameter: &String| index(&layer_of(parameter)).unwrap_or(last);
        let states = parameters.iter().map(|parameter| (parameter.clone(), device(parameter))).collect();
        Ok(Rc::new(PlacedModel { placement: placement.clone(), states, last }))
    }

    /// The numerics of the device that a layer is on; where no rule says, what all devices have in common.
    pub(super) fn layer_numerics(&self, layer: &str) -> Numerics {
        let placed = match &self.replication {
            Some(Replication::Placed { devices, model: Some(model), .. }) => Some((devices, model)),
            _ => None,
        };
        let found = placed
            .and_then(|(devices, model)| Some((devices, devices.index(model.placement.device(layer)?)?)));
        found.map_or_else(|| self.numerics(), |(devices, at)| devices.executor(at).target().numerics())
    }

    /// What of the executor decides the bits of results; where layers are on different ones, for each rule that places some.
    pub(crate) fn instructions(&self) -> String {
        let own = self.chosen_executor().target().instructions();
        let Some(Replication::Placed { devices, model: Some(model), .. }) = &self.replication else {
            return own;
        };
        let of = |at: usize| devices.executor(at).target().instructions();
        if (0..devices.len()).all(|at| of(at) == own) {
            return own;
        }
        let rules = model.placement.rules.iter().filter_map(|rule| {
            let instructions = of(devices.index(rule.device)?);
            Some(format!("{} on {instructions}", rule.pattern))
        });
        rules.collect::<Vec<_>>().join("; ")
    }

    /// The layers of the model, cut for these devices: a rule for each.
    fn cut_layers(&self, devices: &[DeviceName]) -> Result<Placement, TrainError> {
        let forward =
            |model: Arc<dyn Model>| step::prediction_as(&self.policy, &self.numerics(), model.as_ref(), 1);
        let forward = self.shared_models().map(forward).collect::<Result<Vec<Graph>, _>>()?;
        let layers = LayerBytes::new(&forward, &self.training_step()?);
        let cut = layers.cut(devices.len()).ok_or_else(|| {
            let (count, devices) = (layers.names.len(), devices.len());
            TrainError::Setting(format!(
                "the model has {count} layers, too few for {devices} devices: use fewer"
            ))
        })?;
        // One rule for a layer and all inside it, where these are together; a layer that is apart from one around it comes first.
        let inside = |layer: &str, outer: &str| {
            layer.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let together = |outer: &str, device: usize| {
            let mut all = layers.names.iter().zip(&cut).filter(|(layer, _)| inside(layer, outer));
            all.all(|(_, &other)| other == device)
        };
        let mut rules: Vec<(&str, usize)> = Vec::new();
        for (layer, &device) in layers.names.iter().zip(&cut) {
            let mut outer = layer.match_indices('/').map(|(end, _)| &layer[..end]);
            let rule = (outer.find(|outer| together(outer, device)).unwrap_or(layer), device);
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        rules.sort_by_key(|(layer, _)| std::cmp::Reverse(layer.len()));
        Placement::new(rules.into_iter().map(|(layer, at)| format!("{layer}={}", devices[at])))
    }

    /// The layers of the model and its variants.
    fn layers(&self) -> Result<Layers, TrainError> {
        let mut layers = Layers::default();
        let is_weight = |role: Role| matches!(role, Role::Parameter | Role::Statistic);
        for model in self.shared_models() {
            let forward = step::prediction_as(&self.policy, &self.numerics(), model.as_ref(), 1)?;
            // A layer may hold parameters that only others compute with.
            let states = forward.states.iter().filter(|state| is_weight(state.role));
            let own: Vec<String> = states.map(|state| state.name.clone()).collect();
            forward.nodes.iter().for_each(|node| layers.add(&node.layer));
            own.iter().for_each(|parameter| layers.add(&layer_of(parameter)));
            if let Some(node) = forward.nodes.iter().rfind(|node| !node.layer.is_empty()) {
                layers.last = node.layer.to_string();
            }
            layers.parameters.extend(own);
        }
        Ok(layers)
    }

    /// The kinds of batches that a device has plans for.
    pub(super) fn kinds_of_device(&self, device: usize) -> Vec<BatchKind> {
        match device == 0 || self.is_placed() {
            true => self.kinds.clone(),
            false => vec![BatchKind::Train],
        }
    }
}

/// The layer of a parameter.
pub(super) fn layer_of(parameter: &str) -> String {
    parameter.rsplit_once('/').map_or(parameter, |(layer, _)| layer).to_string()
}

/// The first few of some layers, in words.
fn some(layers: &[String]) -> String {
    let named: Vec<String> = layers.iter().take(NAMED).map(|layer| format!("`{layer}`")).collect();
    match layers.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let placement = Placement::new(["block[0-2].*=cpu:0", "block3/dense=cpu:2", "*=cpu:1"]).unwrap();
        for (layer, number) in [
            ("block0", 0),
            ("block2/attention", 0),
            ("block3", 1),
            ("block3/dense", 2),
            ("block3/dense1", 1),
            ("block20", 1),
        ] {
            assert_eq!(placement.device(layer), Some(DeviceName::Cpu(number)), "{layer}");
        }
        assert_eq!(placement.devices(), [0, 1, 2].map(DeviceName::Cpu));
        let mixed = Placement::new(["a=cuda:1", "b=cpu:1", "*=CUDA:0"]).unwrap();
        let all = [DeviceName::Cpu(0), DeviceName::Cpu(1), DeviceName::Cuda(0), DeviceName::Cuda(1)];
        assert_eq!(mixed.devices(), all);
        assert_eq!(Placement::new(["*=cuda:2"]).unwrap().devices(), [DeviceName::Cuda(2)]);
        assert_eq!(placement.to_string(), "block[0-2].*=cpu:0,block3/dense=cpu:2,*=cpu:1");
    }

    #[test]
    fn rules_that_are_none_say_what_to_write() {
        for (rule, words) in [
            ("conv1", "like block[0-5].*=cpu:0"),
            ("=cpu:0", "is no LAYERS=DEVICE"),
            ("*=cuda", "name one GPU, like cuda:0"),
            ("*=cuda:first", "the GPUs, cuda:0 and so on"),
            ("*=tpu:0", "does not exist"),
            ("*=cpu:64", "the devices are cpu:0 to cpu:63"),
            ("auto=cpu:0-64", "like auto=cpu:0-1"),
            ("auto=cpu:0-", "like auto=cpu:0-1"),
            ("auto=cpu,cpu", "like auto=cpu:0-1"),
            ("auto=cuda", "or auto=cuda:0,cpu"),
        ] {
            let error = Placement::new([rule]).unwrap_err().to_string();
            assert!(error.contains(words), "no `{words}` in: {error}");
        }
        assert!(Placement::new(Vec::<String>::new()).is_err());
        let both = Placement::new(["auto", "*=cpu:0"]).unwrap_err().to_string();
        assert!(both.contains("leave the other rules out"), "{both}");
        assert!(Placement::auto(0).is_err());
        assert_eq!(Placement::new(["auto"]).unwrap().to_string(), "auto=cpu:0-1");
        // A command line separates rules by commas.
        let apart = Placement::new(["auto=cuda:0", "cpu"]).unwrap();
        assert_eq!(apart, Placement::new(["auto=cuda:0,cpu:0"]).unwrap());
        assert_eq!(apart.to_string(), "auto=cuda:0,cpu:0");
        let both = Placement::new(["auto=cuda:0", "*=cpu"]).unwrap_err().to_string();
        assert!(both.contains("leave the other rules out"), "{both}");
    }

    #[test]
    fn what_belongs_to_a_parameter_is_with_it() {
        let states = [("a/kernel".to_string(), 1), ("a".to_string(), 0)].into_iter().collect();
        let placement = Placement::new(["*=cpu:0"]).unwrap();
        let model = PlacedModel { placement, states, last: 2 };
        let found = ["a/kernel", "a/kernel/moment", "a/bias", "loss_scale"].map(|name| model.state(name));
        assert_eq!(found, [1, 1, 0, 2]);
    }
}
