//! Recurrent layers over the positions of a sequence `[examples, positions, width]`. Long short-term memory is one op where the
//! target has it; the others are unrolled.
//!
//! The input projection is one product over all positions; the gradient of the recurrent kernel is one product over the
//! stacked steps (see `plimsoll_transform`).

use super::{Layer, glorot_uniform};
use crate::Net;
use plimsoll_graph::op::Recurrent as RecurrentOp;
use plimsoll_graph::{GraphError, Init, Op, ValueId};

/// The state passed from step to step; its first value is the layer's output.
pub type HiddenState = Vec<ValueId>;

/// A recurrent layer.
pub trait Recurrent: Send + Sync {
    /// Runs over the sequence, backwards if `reverse`, from `start` or from zeros. Returns the outputs
    /// `[examples, positions, units]`, in the sequence's order, and the state after the last step.
    fn run(
        &self,
        net: &mut Net,
        x: ValueId,
        start: Option<HiddenState>,
        reverse: bool,
    ) -> Result<(ValueId, HiddenState), GraphError>;
    /// Whether the layer returns the output of every position, or only the last one.
    fn returns_sequence(&self) -> bool;
}

/// `x · kernel + bias` for every position: `[examples, positions, gates · units]`.
fn input_projections(
    net: &mut Net,
    op: &'static str,
    x: ValueId,
    gates: usize,
    units: usize,
) -> Result<ValueId, GraphError> {
    let [_, positions, width] = net.sequence(op, x)?;
    if positions < 2 {
        let reason = "a recurrence needs at least two positions: for one, use a dense layer".to_string();
        return Err(net.refuse(op, &[x], reason));
    }
    net.at_least_one(op, x, units, "unit")?;
    let kernel = net.parameter("kernel", [width, gates * units], glorot_uniform(width, units));
    let bias = net.parameter("bias", [gates * units], Init::Zeros);
    net.linear(x, kernel, Some(bias))
}

/// The recurrent kernel: its columns have about the norm of an orthogonal matrix's.
fn recurrent_kernel(net: &mut Net, gates: usize, units: usize) -> ValueId {
    net.parameter("recurrent_kernel", [units, gates * units], glorot_uniform(units, units))
}

/// From a position's projected input and the state before it to the state after it.
type Step = Box<dyn Fn(&mut Net, ValueId, &HiddenState) -> Result<HiddenState, GraphError>>;

/// A layer whose parameters are in the graph.
struct Cell {
    /// The projected inputs of all positions.
    inputs: ValueId,
    units: usize,
    /// Values of the state, each `[examples, units]`.
    parts: usize,
    step: Step,
    /// The recurrent kernel, for a recurrence that is one op: long short-term memory.
    joined: Option<ValueId>,
}

/// `x + state · kernel`.
fn recurrent(net: &mut Net, x: ValueId, state: &HiddenState, kernel: ValueId) -> Result<ValueId, GraphError> {
    let product = net.matmul(state[0], kernel)?;
    net.add(x, product)
}

/// Zeros `[examples, units]` for the examples of x. With them the first step is like the others, and the gradients of both
/// kernels come from the same stacked rows.
fn zero_state(net: &mut Net, x: ValueId, units: usize) -> Result<ValueId, GraphError> {
    let examples = net.shape(x)[0];
    let empty = net.slice(x, 1, 0..0)?;
    let empty = net.reshape(empty, [examples, 0])?;
    let empty = net.detach(empty)?;
    net.pad(empty, &[[0, 0], [0, units]], 0.0)
}

/// Applies a cell to all positions, from `start` or from zeros.
fn run(
    net: &mut Net,
    Cell { inputs, units, parts, step, joined }: Cell,
    start: Option<HiddenState>,
    reverse: bool,
) -> Result<(ValueId, HiddenState), GraphError> {
    if let Some(state) = start.as_ref().filter(|state| state.len() != parts) {
        let reason = format!("the initial state must have {parts} values, {} were given", state.len());
        return Err(net.refuse("recurrence", state, reason));
    }
    let mut state = match start {
        Some(state) => state,
        None => vec![zero_state(net, inputs, units)?; parts],
    };
    if let Some(kernel) = joined.filter(|_| !net.unrolls) {
        return lstm_op(net, inputs, kernel, &state, reverse);
    }
    let mut inputs = net.unstack(inputs, 1)?;
    if reverse {
        inputs.reverse();
    }
    let mut outputs = Vec::with_capacity(inputs.len());
    for x in inputs {
        state = step(net, x, &state)?;
        outputs.push(state[0]);
    }
    if reverse {
        outputs.reverse();
    }
    Ok((net.stack(&outputs, 1)?, state))
}

/// Long short-term memory over all positions as one op.
fn lstm_op(
    net: &mut Net,
    x: ValueId,
    kernel: ValueId,
    state: &HiddenState,
    reverse: bool,
) -> Result<(ValueId, HiddenState), GraphError> {
    let outputs = net.node(Op::Recurrent(RecurrentOp::Lstm { reverse }), &[x, kernel, state[0], state[1]])?;
    let &[examples, positions, units] = &net.shape(outputs[0])[..] else {
        unreachable!("a sequence has three axes")
    };
    let last = if reverse { 0 } else { positions - 1 };
    let mut after = Vec::with_capacity(2);
    for &sequence in &outputs[..2] {
        let value = net.slice(sequence, 1, last..last + 1)?;
        after.push(net.reshape(value, [examples, units])?);
    }
    Ok((outputs[0], after))
}

/// The output of every position, or of the last one.
fn forward(layer: &dyn Recurrent, net: &mut Net, x: ValueId, reverse: bool) -> Result<ValueId, GraphError> {
    let (outputs, state) = layer.run(net, x, None, reverse)?;
    Ok(if layer.returns_sequence() { outputs } else { state[0] })
}

macro_rules! recurrent {
    ($(#[$doc:meta])* $name:ident, $cell:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            units: usize,
            all: bool,
        }

        impl $name {
            /// A layer with this many units that returns its last output.
            pub fn new(units: usize) -> Self {
                Self { units, all: false }
            }

            /// The layer with the output of every position: `[examples, positions, units]`.
            pub fn all(self) -> Self {
                Self { all: true, ..self }
            }
        }

        impl Recurrent for $name {
            fn returns_sequence(&self) -> bool {
                self.all
            }

            fn run(
                &self,
                net: &mut Net,
                x: ValueId,
                start: Option<HiddenState>,
                reverse: bool,
            ) -> Result<(ValueId, HiddenState), GraphError> {
                let cell = $cell(net, x, self.units)?;
                run(net, cell, start, reverse)
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
    SimpleRnn,
    simple_rnn
);

recurrent!(
    /// Long short-term memory (Hochreiter and Schmidhuber 1997). Gates in the order input, forget, cell, output; the
    /// state is the output and the cell.
    Lstm,
    lstm
);

recurrent!(
    /// Gated recurrent unit (Cho et al. 2014), reset after the product. Gates in the order reset, update, new; the
    /// recurrent product has a bias of its own.
    Gru,
    gru
);

fn simple_rnn(net: &mut Net, x: ValueId, units: usize) -> Result<Cell, GraphError> {
    let inputs = input_projections(net, "simple_rnn", x, 1, units)?;
    let kernel = recurrent_kernel(net, 1, units);
    let step: Step = Box::new(move |net, x, state| {
        let sum = recurrent(net, x, state, kernel)?;
        Ok(vec![net.tanh(sum)?])
    });
    Ok(Cell { inputs, units, parts: 1, step, joined: None })
}

fn lstm(net: &mut Net, x: ValueId, units: usize) -> Result<Cell, GraphError> {
    let inputs = input_projections(net, "lstm", x, 4, units)?;
    let kernel = recurrent_kernel(net, 4, units);
    let step: Step = Box::new(move |net, x, state| {
        let gates = recurrent(net, x, state, kernel)?;
        let gates = net.split(gates, 1, &[units; 4])?;
        let (input, new) = (net.sigmoid(gates[0])?, net.tanh(gates[2])?);
        let (added, forget) = (net.mul(input, new)?, net.sigmoid(gates[1])?);
        let kept = net.mul(forget, state[1])?;
        let cell = net.add(kept, added)?;
        let (output, squashed) = (net.sigmoid(gates[3])?, net.tanh(cell)?);
        Ok(vec![net.mul(output, squashed)?, cell])
    });
    Ok(Cell { inputs, units, parts: 2, step, joined: Some(kernel) })
}

fn gru(net: &mut Net, x: ValueId, units: usize) -> Result<Cell, GraphError> {
    let inputs = input_projections(net, "gru", x, 3, units)?;
    let kernel = recurrent_kernel(net, 3, units);
    let bias = net.parameter("recurrent_bias", [3 * units], Init::Zeros);
    let step: Step = Box::new(move |net, x, state| {
        let product = net.matmul(state[0], kernel)?;
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
        let (new, old) = (net.mul(rest, new)?, net.mul(update, state[0])?);
        Ok(vec![net.add(new, old)?])
    });
    Ok(Cell { inputs, units, parts: 1, step, joined: None })
}

/// A recurrence in both directions, concatenated: twice the units.
#[derive(Clone, Copy, Debug)]
pub struct Bidirectional<L>(L);

impl<L: Recurrent> Bidirectional<L> {
    /// The recurrence in both directions.
    pub const fn new(layer: L) -> Self {
        Self(layer)
    }
}

impl<L: Recurrent> Layer for Bidirectional<L> {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let forwards = net.scope("forward", |net| forward(&self.0, net, x, false))?;
        let backwards = net.scope("backward", |net| forward(&self.0, net, x, true))?;
        let axis = net.shape(forwards).rank() - 1;
        net.concat(&[forwards, backwards], axis)
    }
}
