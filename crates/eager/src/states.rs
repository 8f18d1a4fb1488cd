//! What a compiled step keeps from run to run: networks, optimizers, tensors.

use crate::context::Context;
use crate::error::{Error, Result};
use crate::network::Network;
use crate::optimizer::Optimizer;
use crate::tensor::Tensor;
use crate::trace::{Trace, TracedPart};
use plimsoll_graph::Role;
use plimsoll_tensor::TensorType;
use std::sync::Arc;

/// The states of a [compiled step](crate::compile_step): a network, an optimizer, a tensor, or several as a tuple or vector. A
/// structure of one's own lists its parts.
///
/// ```
/// use plimsoll_eager::{Network, Optimizer, Part, States};
/// struct Run {
///     net: Network,
///     optimizer: Optimizer,
/// }
/// impl States for Run {
///     fn parts(&mut self) -> Vec<Part<'_>> {
///         vec![(&mut self.net).into(), (&mut self.optimizer).into()]
///     }
/// }
/// ```
pub trait States {
    /// Its parts, in the same order every time.
    fn parts(&mut self) -> Vec<Part<'_>>;
}

/// A part of [`States`].
pub struct Part<'a>(Kind<'a>);

enum Kind<'a> {
    Network(&'a mut Network),
    Optimizer(&'a mut Optimizer),
    Tensor(&'a mut Tensor),
}

/// A state of a part.
pub(crate) struct Slot<'a> {
    /// Its name among the states of all parts.
    pub name: String,
    pub role: Role,
    pub tensor: &'a mut Tensor,
}

impl Slot<'_> {
    /// An error if the state is of another context or type than a compiled step has.
    pub fn check(&self, context: &Arc<Context>, ty: &TensorType) -> Result<()> {
        if !Arc::ptr_eq(self.tensor.context(), context) {
            return Err(self.tensor.elsewhere("compiled step", context));
        }
        if self.tensor.ty() != ty {
            let (name, found) = (&self.name, self.tensor.ty());
            return Err(Error::Argument(format!(
                "the state `{name}` of a compiled step is {ty}, not {found}"
            )));
        }
        Ok(())
    }
}

impl<'a> From<&'a mut Network> for Part<'a> {
    fn from(network: &'a mut Network) -> Self {
        Self(Kind::Network(network))
    }
}

impl<'a> From<&'a mut Optimizer> for Part<'a> {
    fn from(optimizer: &'a mut Optimizer) -> Self {
        Self(Kind::Optimizer(optimizer))
    }
}

impl<'a> From<&'a mut Tensor> for Part<'a> {
    fn from(tensor: &'a mut Tensor) -> Self {
        Self(Kind::Tensor(tensor))
    }
}

/// The name of a state among those of all parts.
pub(crate) fn full_name(part: usize, name: &str) -> String {
    if part == 0 { name.to_string() } else { format!("#{part}/{name}") }
}

impl Part<'_> {
    /// Its states; those of an optimizer begin with its first update.
    pub(crate) fn slots(&mut self, part: usize) -> Vec<Slot<'_>> {
        match &mut self.0 {
            Kind::Network(network) => (network.states.iter_mut())
                .map(|s| Slot { name: full_name(part, &s.name), role: s.role, tensor: &mut s.tensor })
                .collect(),
            Kind::Optimizer(optimizer) => (optimizer.moments_mut().iter_mut())
                .map(|m| Slot { name: full_name(part, &m.name), role: m.role, tensor: &mut m.tensor })
                .collect(),
            Kind::Tensor(tensor) => {
                vec![Slot { name: full_name(part, "variable"), role: Role::Parameter, tensor }]
            }
        }
    }

    /// Begins a trace: states are the trace's from now on, those of an optimizer when it is first applied.
    pub(crate) fn begin(&mut self, part: usize, trace: &Arc<Trace>) {
        let traced = TracedPart { trace: trace.clone(), part, turns: 0 };
        match &mut self.0 {
            Kind::Network(network) => network.traced = Some(traced.clone()),
            Kind::Optimizer(optimizer) => {
                optimizer.traced = Some(traced);
                return;
            }
            Kind::Tensor(_) => {}
        }
        for (place, Slot { name, role, tensor }) in self.slots(part).into_iter().enumerate() {
            *tensor = traced.state(place, name, role, tensor);
        }
    }

    /// Ends a trace; returns how many turns it took.
    pub(crate) fn end(&mut self) -> u64 {
        let traced = match &mut self.0 {
            Kind::Network(network) => network.traced.take(),
            Kind::Optimizer(optimizer) => optimizer.traced.take(),
            Kind::Tensor(_) => None,
        };
        traced.map_or(0, |traced| traced.turns)
    }

    /// The bytes of a setting of a turn after the next.
    pub(crate) fn setting(&self, turn: u64, index: usize) -> Vec<u8> {
        match &self.0 {
            Kind::Network(network) => network.key_bytes(turn),
            Kind::Optimizer(optimizer) => optimizer.setting_bytes(turn, index),
            Kind::Tensor(_) => Vec::new(),
        }
    }

    /// Counts turns that a run took.
    pub(crate) fn advance(&mut self, turns: u64) {
        match &mut self.0 {
            Kind::Network(network) => network.step += turns,
            Kind::Optimizer(optimizer) => optimizer.step += turns,
            Kind::Tensor(_) => {}
        }
    }

    /// Sets the scale of an optimizer.
    pub(crate) fn set_scale(&mut self, scale: f64) {
        if let Kind::Optimizer(optimizer) = &mut self.0 {
            optimizer.set_scale(scale);
        }
    }
}

impl States for () {
    fn parts(&mut self) -> Vec<Part<'_>> {
        Vec::new()
    }
}

impl States for Network {
    fn parts(&mut self) -> Vec<Part<'_>> {
        vec![self.into()]
    }
}

impl States for Optimizer {
    fn parts(&mut self) -> Vec<Part<'_>> {
        vec![self.into()]
    }
}

impl States for Tensor {
    fn parts(&mut self) -> Vec<Part<'_>> {
        vec![self.into()]
    }
}

impl<T: States> States for Vec<T> {
    fn parts(&mut self) -> Vec<Part<'_>> {
        self.iter_mut().flat_map(States::parts).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident: $index:tt),*);)*) => {
        $(impl<$($name: States),*> States for ($($name,)*) {
            fn parts(&mut self) -> Vec<Part<'_>> {
                let mut parts = Vec::new();
                $(parts.extend(self.$index.parts());)*
                parts
            }
        })*
    };
}

tuples! {
    (A: 0, B: 1);
    (A: 0, B: 1, C: 2);
    (A: 0, B: 1, C: 2, D: 3);
}
