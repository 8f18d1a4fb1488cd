//! Recurrent layers, unrolled over the positions of a sequence `[examples, positions, width]`.
//!
//! What does not depend on the step before is one product over all positions; the gradient of the recurrent kernel is
//! one product over the stacked steps (see `plimsoll_transform`).

use super::{Layer, glorot_uniform};
use crate::Net;
use plimsoll_graph::{GraphError, Init, ValueId};

/// What a recurrence carries from step to step: the first is what the layer shows.
pub type Memory = Vec<ValueId>;

/// A layer that goes through a sequence step by step.
pub trait Recurrent: Send + Sync {
    /// Goes through the sequence, backwards if `reverse`, from a memory if one is given. Returns the result of every
    /// position, in the sequence's order, and the memory after the last step.
    fn run(
        &self,
        net: &mut Net,
        x: ValueId,
        start: Option<Memory>,
        reverse: bool,
    ) -> Result<(Vec<ValueId>, Memory), GraphError>;
    /// Whether the layer shows every position, or the last one alone.
    fn shows_all(&self) -> bool;
}

/// `x · kernel + bias` for every position, by position; each is `[examples, gates · units]`.
fn inputs(
    net: &mut Net,
    op: &'static str,
    x: ValueId,
    gates: usize,
    units: usize,
) -> Result<Vec<ValueId>, GraphError> {
    let [_, positions, width] = net.sequence(op, x)?;
    if positions < 2 {
        let reason = "a recurrence needs at least two positions: for one, use a dense layer".to_string();
        return Err(net.refuse(op, &[x], reason));
    }
    net.some(op, x, units, "unit")?;
    let kernel = net.parameter("kernel", [width, gates * units], glorot_uniform(width, units));
    let bias = net.parameter("bias", [gates * units], Init::Zeros);
    let all = net.linear(x, kernel, Some(bias))?;
    net.unstack(all, 1)
}

/// The recurrent kernel: orthogonal matrices have columns of this size.
fn recurrent_kernel(net: &mut Net, gates: usize, units: usize) -> ValueId {
    net.parameter("recurrent_kernel", [units, gates * units], glorot_uniform(units, units))
}

/// From a position's input and the memory before it to the memory after it.
type Step<'a> = dyn Fn(&mut Net, ValueId, &Memory) -> Result<Memory, GraphError> + 'a;

/// `x + memory · kernel`.
fn recurrent(net: &mut Net, x: ValueId, memory: &Memory, kernel: ValueId) -> Result<ValueId, GraphError> {
    let product = net.matmul(memory[0], kernel)?;
    net.add(x, product)
}

/// Zeros for every example, as wide as told. The first step is then like the others, and the gradients of both kernels come
/// from the same stacked rows.
fn blank(net: &mut Net, x: ValueId, units: usize) -> Result<ValueId, GraphError> {
    let nothing = net.slice(x, 1, 0..0)?;
    let nothing = net.detach(nothing)?;
    net.pad(nothing, &[[0, 0], [0, units]], 0.0)
}

/// Applies `step` position after position, from a memory of so many parts of so many units: the given one, or zeros.
fn unroll(
    net: &mut Net,
    mut inputs: Vec<ValueId>,
    start: Option<Memory>,
    (parts, units): (usize, usize),
    reverse: bool,
    step: &Step<'_>,
) -> Result<(Vec<ValueId>, Memory), GraphError> {
    if let Some(memory) = start.as_ref().filter(|memory| memory.len() != parts) {
        let reason = format!("a memory has {parts} parts here, {} were given", memory.len());
        return Err(net.refuse("recurrence", memory, reason));
    }
    if reverse {
        inputs.reverse();
    }
    let mut memory = match start {
        Some(memory) => memory,
        None => vec![blank(net, inputs[0], units)?; parts],
    };
    let mut shown = Vec::with_capacity(inputs.len());
    for x in inputs {
        memory = step(net, x, &memory)?;
        shown.push(memory[0]);
    }
    if reverse {
        shown.reverse();
    }
    Ok((shown, memory))
}

/// The whole result, or its last step.
fn forward(layer: &dyn Recurrent, net: &mut Net, x: ValueId, reverse: bool) -> Result<ValueId, GraphError> {
    let (shown, memory) = layer.run(net, x, None, reverse)?;
    if layer.shows_all() { net.stack(&shown, 1) } else { Ok(memory[0]) }
}

macro_rules! recurrent {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            units: usize,
            all: bool,
        }

        impl $name {
            /// So many units, the last position's shown.
            pub fn new(units: usize) -> Self {
                Self { units, all: false }
            }

            /// The layer with every position shown: `[examples, positions, units]`.
            pub fn all(self) -> Self {
                Self { all: true, ..self }
            }
        }

        impl Layer for $name {
            fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
                forward(self, net, x, false)
            }
        }
    };
}

recurrent!(
    /// `h = tanh(x · kernel + h · recurrent_kernel + bias)`.
    SimpleRnn
);

recurrent!(
    /// Long short-term memory (Hochreiter and Schmidhuber 1997). Gates in the order input, forget, cell, output; the
    /// memory is the result and the cell.
    Lstm
);

recurrent!(
    /// Gated recurrent unit (Cho et al. 2014), reset after the product. Gates in the order reset, update, new; the
    /// recurrent product has a bias of its own.
    Gru
);

impl Recurrent for SimpleRnn {
    fn shows_all(&self) -> bool {
        self.all
    }

    fn run(
        &self,
        net: &mut Net,
        x: ValueId,
        start: Option<Memory>,
        reverse: bool,
    ) -> Result<(Vec<ValueId>, Memory), GraphError> {
        let inputs = inputs(net, "simple_rnn", x, 1, self.units)?;
        let kernel = recurrent_kernel(net, 1, self.units);
        unroll(net, inputs, start, (1, self.units), reverse, &|net, x, memory| {
            let sum = recurrent(net, x, memory, kernel)?;
            Ok(vec![net.tanh(sum)?])
        })
    }
}

impl Recurrent for Lstm {
    fn shows_all(&self) -> bool {
        self.all
    }

    fn run(
        &self,
        net: &mut Net,
        x: ValueId,
        start: Option<Memory>,
        reverse: bool,
    ) -> Result<(Vec<ValueId>, Memory), GraphError> {
        let units = self.units;
        let inputs = inputs(net, "lstm", x, 4, units)?;
        let kernel = recurrent_kernel(net, 4, units);
        unroll(net, inputs, start, (2, units), reverse, &|net, x, memory| {
            let gates = recurrent(net, x, memory, kernel)?;
            let gates = net.split(gates, 1, &[units; 4])?;
            let (input, new) = (net.sigmoid(gates[0])?, net.tanh(gates[2])?);
            let (added, forget) = (net.mul(input, new)?, net.sigmoid(gates[1])?);
            let kept = net.mul(forget, memory[1])?;
            let cell = net.add(kept, added)?;
            let (output, shown) = (net.sigmoid(gates[3])?, net.tanh(cell)?);
            Ok(vec![net.mul(output, shown)?, cell])
        })
    }
}

impl Recurrent for Gru {
    fn shows_all(&self) -> bool {
        self.all
    }

    fn run(
        &self,
        net: &mut Net,
        x: ValueId,
        start: Option<Memory>,
        reverse: bool,
    ) -> Result<(Vec<ValueId>, Memory), GraphError> {
        let units = self.units;
        let inputs = inputs(net, "gru", x, 3, units)?;
        let kernel = recurrent_kernel(net, 3, units);
        let bias = net.parameter("recurrent_bias", [3 * units], Init::Zeros);
        unroll(net, inputs, start, (1, units), reverse, &|net, x, memory| {
            let product = net.matmul(memory[0], kernel)?;
            let recurrent = net.add(product, bias)?;
            let (x, recurrent) = (net.split(x, 1, &[units; 3])?, net.split(recurrent, 1, &[units; 3])?);
            let reset = net.add(x[0], recurrent[0])?;
            let reset = net.sigmoid(reset)?;
            let update = net.add(x[1], recurrent[1])?;
            let update = net.sigmoid(update)?;
            let kept = net.mul(reset, recurrent[2])?;
            let new = net.add(x[2], kept)?;
            let new = net.tanh(new)?;
            let rest = net.subtract_from(1.0, update)?;
            let (new, old) = (net.mul(rest, new)?, net.mul(update, memory[0])?);
            Ok(vec![net.add(new, old)?])
        })
    }
}

/// A recurrence in both directions, side by side: twice the units.
#[derive(Clone, Copy, Debug)]
pub struct Bidirectional<L>(
    /// The recurrence.
    pub L,
);

impl<L: Recurrent> Layer for Bidirectional<L> {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let ahead = net.scope("forward", |net| forward(&self.0, net, x, false))?;
        let back = net.scope("backward", |net| forward(&self.0, net, x, true))?;
        let axis = net.shape(ahead).rank() - 1;
        net.concat(&[ahead, back], axis)
    }
}
