//! Dense layers and embeddings.

use super::{Layer, he_uniform};
use crate::{Net, Penalty};
use plimsoll_graph::{GraphError, Init, ValueId};

/// `y = x · kernel + bias` along the last axis.
#[derive(Clone, Debug)]
pub struct Dense {
    units: usize,
    bias: bool,
    init: Option<Init>,
    penalty: Penalty,
}

impl Dense {
    /// A layer with this many outputs. The kernel starts uniform in ±√(6 / inputs) (He), the bias at zero.
    pub fn new(units: usize) -> Self {
        Self { units, bias: true, init: None, penalty: Penalty::default() }
    }

    /// The layer without a bias.
    pub fn without_bias(self) -> Self {
        Self { bias: false, ..self }
    }

    /// The layer with another initialisation of its kernel.
    pub fn init(self, init: Init) -> Self {
        Self { init: Some(init), ..self }
    }

    /// The layer with a penalty on its kernel.
    pub fn penalty(self, penalty: Penalty) -> Self {
        Self { penalty, ..self }
    }
}

impl Layer for Dense {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let width = net.width("dense", x)?;
        net.at_least_one("dense", x, self.units, "unit")?;
        let init = self.init.unwrap_or(he_uniform(width));
        let kernel = net.parameter("kernel", [width, self.units], init);
        let bias = self.bias.then(|| net.parameter("bias", [self.units], Init::Zeros));
        net.penalise(kernel, self.penalty)?;
        net.linear(x, kernel, bias)
    }
}

/// A table of vectors, indexed by i32 tokens.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    rows: usize,
    width: usize,
    init: Init,
}

impl Embedding {
    /// A table of `rows` vectors of this width; tokens are below `rows`. It starts normal with a deviation of 0.02.
    pub const fn new(rows: usize, width: usize) -> Self {
        Self { rows, width, init: Init::Normal(0.02) }
    }

    /// The layer with another initialisation of its table.
    pub const fn init(self, init: Init) -> Self {
        Self { init, ..self }
    }
}

impl Layer for Embedding {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        net.at_least_one("embedding", x, self.rows, "row")?;
        net.at_least_one("embedding", x, self.width, "element in a row")?;
        let table = net.parameter("table", [self.rows, self.width], self.init);
        net.gather(table, x)
    }
}
