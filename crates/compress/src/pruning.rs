//! Pruning while training: an optimizer around another one.

use crate::{CODES, Sparsity};
use plimsoll_graph::op::Prune;
use plimsoll_graph::{Builder, Graph, GraphError, Init, Op, Role, ValueId};
use plimsoll_nn::{AVERAGE, Decay, MASK, Optimizer, Parameter, Pattern};
use plimsoll_tensor::{DType, TensorType, kept_at, mask_bytes};
use std::collections::BTreeMap;

/// The setting that holds the sparsity of the masks to find; below zero at steps that keep the masks.
const SPARSITY: &str = "sparsity";

/// The last parts of the names of parameters that are pruned: weights that are multiplied, and tables.
const PRUNED: [&str; 3] = ["kernel", "recurrent_kernel", "table"];

/// Magnitude pruning while a model trains: which layers, and how sparse they become.
///
/// After the update of a step, its weights of the smallest magnitudes become zero. At the steps of the [`Sparsity`]'s updates the
/// masks of all pruned parameters are found anew, each for itself; in between they stay, so pruned weights get gradients and
/// moments, and may return with the next masks. Evaluations, checkpoints and weights files see masked weights. A mask takes a bit
/// per weight; it is a state, in the load sheet and in checkpoints.
#[derive(Clone, Debug)]
pub struct Pruning {
    sparsity: Sparsity,
    layers: Vec<Pattern>,
}

impl Pruning {
    /// Prunes the kernels and tables of all layers that are trained.
    pub fn new(sparsity: Sparsity) -> Self {
        Self { sparsity, layers: Vec::new() }
    }

    /// Prunes only layers that this [`Pattern`], or another one given, matches.
    pub fn layers(mut self, pattern: &str) -> Self {
        self.layers.push(Pattern::new(pattern));
        self
    }

    /// An optimizer that updates as this one and prunes.
    pub fn around(self, optimizer: impl Optimizer + 'static) -> Pruned {
        Pruned { optimizer: Box::new(optimizer), pruning: self }
    }
}

/// An optimizer that prunes: [`Pruning::around`].
pub struct Pruned {
    optimizer: Box<dyn Optimizer>,
    pruning: Pruning,
}

impl Pruned {
    fn prunes(&self, name: &str) -> bool {
        let layers = &self.pruning.layers;
        prunable(name)
            && self.optimizer.trains(name)
            && (layers.is_empty() || layers.iter().any(|pattern| pattern.matches(name)))
    }

    /// The parameters of a graph that are pruned, and how many elements of each are left at the end of the schedule, where storing them
    /// sparse is smaller: what a run's weights file holds, but for weights of equal magnitude. Of layers on bytes it is their codes.
    pub fn stripped(&self, graph: &Graph) -> BTreeMap<String, usize> {
        let sparsity = self.pruning.sparsity.target();
        let parameters = graph.states.iter().filter(|state| state.role == Role::Parameter);
        let found = parameters.filter_map(|state| {
            let kernel = state.name.strip_suffix(CODES).and_then(|name| name.strip_suffix('/'));
            let ty = graph.ty(state.input);
            let elements = ty.shape.elements();
            let kept = kept_at(elements, sparsity);
            let smaller = kept * ty.dtype.bytes() + mask_bytes(elements) < ty.bytes();
            (smaller && self.prunes(kernel.unwrap_or(&state.name))).then(|| (state.name.clone(), kept))
        });
        found.collect()
    }

    /// Splits the settings into the optimizer's own and the sparsity.
    fn split<T>(settings: &[T]) -> Result<(&[T], &T), GraphError> {
        let split = settings.split_last().map(|(sparsity, own)| (own, sparsity));
        split.ok_or_else(|| GraphError::Broken("pruning needs a setting".into()))
    }

    /// Masks the new versions of parameters and their averages.
    fn mask(&self, b: &mut Builder, parameters: &[Parameter], sparsity: ValueId) -> Result<(), GraphError> {
        for parameter in parameters.iter().filter(|p| self.prunes(&p.name)) {
            b.within(parameter.layer().into(), |b| mask(b, parameter, sparsity))?;
        }
        Ok(())
    }
}

fn prunable(name: &str) -> bool {
    name.rsplit('/').next().is_some_and(|leaf| PRUNED.contains(&leaf))
}

/// Masks the new version of a parameter and of its average.
fn mask(b: &mut Builder, parameter: &Parameter, sparsity: ValueId) -> Result<(), GraphError> {
    let new_version = |b: &Builder, is: &dyn Fn(&plimsoll_graph::State) -> bool| {
        b.graph().states.iter().find(|s| is(s)).and_then(|s| Some((s.input, s.output?)))
    };
    let Some((old, new)) = new_version(b, &|s| s.input == parameter.value) else { return Ok(()) };
    let ty = TensorType::new(DType::U8, [mask_bytes(b.shape(old).elements())]);
    // All bits are set.
    let before = b.named_state(format!("{}/{MASK}", parameter.name), ty, Role::Mask, Init::Constant(255.0));
    let mask = b.one(Op::Prune(Prune::Mask), &[new, before, sparsity])?;
    b.set_state(before, mask);
    let average = format!("{}/{AVERAGE}", parameter.name);
    let average = new_version(b, &|s| s.role == Role::Average && s.name == average);
    for (old, new) in [Some((old, new)), average].into_iter().flatten() {
        let masked = b.one(Op::Prune(Prune::Apply), &[new, mask])?;
        b.set_state(old, masked);
    }
    Ok(())
}

impl Optimizer for Pruned {
    fn setting_names(&self) -> Vec<String> {
        let mut names = self.optimizer.setting_names();
        names.push(SPARSITY.to_string());
        names
    }

    fn settings(&self, step: u64, scale: f64, values: &mut [f64]) {
        if let Some((sparsity, own)) = values.split_last_mut() {
            self.optimizer.settings(step, scale, own);
            *sparsity = self.pruning.sparsity.update(step).map_or(-1.0, f64::from);
        }
    }

    fn description(&self) -> String {
        let layers: Vec<String> = self.pruning.layers.iter().map(ToString::to_string).collect();
        let of = if layers.is_empty() { String::new() } else { format!(" of {}", layers.join(", ")) };
        format!("{}, pruned by {}{of}", self.optimizer.description(), self.pruning.sparsity)
    }

    fn decay(&self) -> Option<&Decay> {
        self.optimizer.decay()
    }

    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        self.updates(b, std::slice::from_ref(parameter), &[gradient], settings)
    }

    fn updates(
        &self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        let (own, &sparsity) = Self::split(settings)?;
        self.optimizer.updates(b, parameters, gradients, own)?;
        self.mask(b, parameters, sparsity)
    }

    /// A skipped step keeps the parameters, and finds masks where it is one of the schedule's.
    fn guarded_updates(
        &self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
        good: ValueId,
    ) -> Result<(), GraphError> {
        let (own, &sparsity) = Self::split(settings)?;
        self.optimizer.guarded_updates(b, parameters, gradients, own, good)?;
        self.mask(b, parameters, sparsity)
    }

    fn trains(&self, name: &str) -> bool {
        self.optimizer.trains(name)
    }

    fn averages(&self) -> bool {
        self.optimizer.averages()
    }

    fn check(&self, names: &[&str]) -> Result<(), GraphError> {
        self.optimizer.check(names)?;
        let kernels = names.iter().filter(|name| prunable(name) && self.optimizer.trains(name));
        let kernels: Vec<&str> = kernels.copied().collect();
        let unused = self.pruning.layers.iter().find(|p| !kernels.iter().any(|name| p.matches(name)));
        if let Some(pattern) = unused {
            return Err(GraphError::Choice(format!(
                "prune: no kernel that is trained is named `{pattern}`; there are {}",
                kernels.join(", ")
            )));
        }
        if kernels.is_empty() {
            return Err(GraphError::Choice("prune: the model has no kernels that are trained".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_nn::{Recipe, Sgd};
    use plimsoll_reference::{evaluate, run_graph};
    use plimsoll_tensor::{Tensor, is_kept};
    use serde_json::Value;

    fn golden() -> Value {
        serde_json::from_str(include_str!("../golden/pruning.json")).unwrap()
    }

    fn floats(value: &Value) -> Vec<f32> {
        value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
    }

    /// Masks of the toolkit's own class, with ties, frozen by `scripts/freeze_pruning.py`.
    #[test]
    fn masks_are_those_of_tensorflows_toolkit() {
        for case in golden()["masks"].as_array().unwrap() {
            let weights = floats(&case["weights"]);
            let bytes = mask_bytes(weights.len());
            let types = [TensorType::new(DType::F32, [weights.len()]), TensorType::new(DType::U8, [bytes])];
            let inputs = [
                Tensor::from(weights.clone()),
                Tensor::zeros(types[1].clone()),
                Tensor::from_f64(TensorType::scalar(DType::F32), &[case["sparsity"].as_f64().unwrap()])
                    .unwrap(),
            ];
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let found = evaluate(&Op::Prune(Prune::Mask), &inputs, &[], &[&types[1]]).unwrap();
            let kept: Vec<f32> =
                (0..weights.len()).map(|i| f32::from(is_kept(found[0].as_bytes(), i))).collect();
            assert_eq!(kept, floats(&case["mask"]), "{}", case["sparsity"]);
        }
    }

    /// A step's states, by name.
    type States = Vec<(String, Tensor)>;

    /// Runs an update: its settings by the optimizer's names, and the gradient.
    fn run(graph: &Graph, states: &mut States, optimizer: &Pruned, settings: &[f64], gradient: &Tensor) {
        let names = optimizer.setting_names();
        let input = |name: &str| match names.iter().position(|known| known == name) {
            Some(i) => Tensor::from_f64(TensorType::scalar(DType::F32), &[settings[i]]).unwrap(),
            None => gradient.clone(),
        };
        let inputs: Vec<Tensor> = graph.inputs.iter().map(|known| input(&known.name)).collect();
        let found = run_graph(graph, |name| state(states, name).clone(), &inputs).unwrap();
        states.iter_mut().zip(found.states).for_each(|((_, old), new)| *old = new);
    }

    fn state<'s>(states: &'s States, name: &str) -> &'s Tensor {
        &states.iter().find(|(known, _)| known == name).unwrap().1
    }

    /// The update of one parameter by written gradients, and its states at the start.
    fn update(optimizer: &Pruned, weights: &[f32]) -> (Graph, States) {
        let ty = TensorType::new(DType::F32, [weights.len()]);
        let mut b = Builder::new(1, 1);
        let name = "layer/kernel".to_string();
        let value = b.named_state(name.clone(), ty.clone(), Role::Parameter, Init::Zeros);
        let gradient = b.setting("gradient", ty);
        let settings: Vec<ValueId> = optimizer
            .setting_names()
            .iter()
            .map(|name| b.setting(name, TensorType::scalar(DType::F32)))
            .collect();
        optimizer.updates(&mut b, &[Parameter { name, value }], &[gradient], &settings).unwrap();
        let graph = b.finish().unwrap();
        let start = |state: &plimsoll_graph::State| {
            let ty = graph.ty(state.input).clone();
            let fill = if let Init::Constant(value) = state.init { value } else { 0.0 };
            let values: Vec<f64> = match state.role {
                Role::Parameter | Role::Average => weights.iter().map(|&w| f64::from(w)).collect(),
                _ => vec![fill; ty.shape.elements()],
            };
            (state.name.clone(), Tensor::from_f64(ty, &values).unwrap())
        };
        let states = graph.states.iter().map(start).collect();
        (graph, states)
    }

    /// Weights after each of twelve steps, as the toolkit leaves them.
    #[test]
    fn a_run_under_pruning_is_the_toolkits() {
        let golden = golden();
        let case = &golden["run"];
        let number = |key: &str| case[key].as_f64().unwrap();
        let step = |key: &str| case[key].as_u64().unwrap();
        let sparsity = Sparsity::polynomial(number("from"), number("to"), step("begin"), step("end"));
        let sparsity = sparsity.unwrap().every(step("every")).unwrap();
        let optimizer = Pruning::new(sparsity).around(Sgd::new(number("rate")));
        let (graph, mut states) = update(&optimizer, &floats(&case["weights"]));
        for (step, gradient) in case["gradients"].as_array().unwrap().iter().enumerate() {
            let mut settings = vec![0.0; optimizer.setting_names().len()];
            optimizer.settings(step as u64, 1.0, &mut settings);
            run(&graph, &mut states, &optimizer, &settings, &Tensor::from(floats(gradient)));
            let after = floats(&case["after"][step]);
            let found = states[0].1.as_f32().unwrap();
            for (found, expected) in found.iter().zip(&after) {
                assert!((found - expected).abs() <= 1e-6, "step {step}: {found}, {expected}");
                assert_eq!(*found == 0.0, *expected == 0.0, "step {step}");
            }
        }
    }

    #[test]
    fn averages_are_masked_too() {
        let sparsity = Sparsity::constant(0.5, 0, None).unwrap();
        let optimizer = Pruning::new(sparsity).around(Recipe::new(Sgd::new(0.5)).average(0.5));
        let (graph, mut states) = update(&optimizer, &[4.0, 1.0, -3.0, 0.5]);
        let mut settings = vec![0.0; 3];
        optimizer.settings(100, 1.0, &mut settings);
        run(&graph, &mut states, &optimizer, &settings, &Tensor::from(vec![2.0f32, 0.0, 2.0, 0.0]));
        assert_eq!(state(&states, "layer/kernel").to_f64(), [3.0, 0.0, -4.0, 0.0]);
        assert_eq!(state(&states, "layer/kernel/average").to_f64(), [3.5, 0.0, -3.5, 0.0]);
    }

    #[test]
    fn kernels_of_chosen_layers_are_pruned() {
        let sparsity = Sparsity::constant(0.5, 0, None).unwrap();
        let recipe = || Recipe::new(Sgd::new(0.1)).freeze("body");
        let names = ["body/kernel", "head/kernel", "head/bias", "words/table", "cell/recurrent_kernel"];
        let pruned = |optimizer: &Pruned| names.map(|name| optimizer.prunes(name));
        let all = Pruning::new(sparsity).around(recipe());
        assert!(all.check(&names).is_ok());
        assert_eq!(pruned(&all), [false, true, false, true, true]);
        let some = Pruning::new(sparsity).layers("head").layers("cell").around(recipe());
        assert_eq!(pruned(&some), [false, true, false, false, true]);
        for pattern in ["nobody", "*/bias", "body"] {
            let none = Pruning::new(sparsity).layers(pattern).around(recipe());
            let error = none.check(&names).unwrap_err().to_string();
            assert!(error.contains(&format!("`{pattern}`")) && error.contains("head/kernel"), "{error}");
        }
    }

    /// Kernels of the layers that are pruned, in floats and on bytes, but for those that a mask would make larger.
    #[test]
    fn what_is_left_of_a_model_is_known_before_it_is_trained() {
        let sparsity = |to| Sparsity::constant(to, 0, None).unwrap();
        let pruned = Pruning::new(sparsity(0.75)).layers("dense*").around(Sgd::new(0.1));
        let graph = plimsoll_nn::step::prediction(&plimsoll_nn::zoo::lenet(), 1).unwrap();
        let floats = pruned.stripped(&graph);
        let expected = [("dense1/kernel", 12000), ("dense2/kernel", 2520), ("dense3/kernel", 210)];
        assert!(floats.iter().map(|(name, kept)| (name.as_str(), *kept)).eq(expected), "{floats:?}");
        let places = crate::places(&graph, &crate::KeptLayers::default()).len();
        let bytes = crate::Int8Grids::new(vec![(1.0, 0); places]).unwrap().apply(graph).unwrap();
        let codes = pruned.stripped(&bytes);
        assert_eq!((codes.len(), codes["dense1/kernel/codes"]), (3, 12000));
        // A tenth less: 32 bits become 29 and one of the mask; 8 would become more.
        let few = Pruning::new(sparsity(0.1)).around(Sgd::new(0.1));
        assert!(few.stripped(&bytes).is_empty());
    }
}
