//! What computes a node on the device: launches of kernels and products, as plain data.

use plimsoll_tensor::DType;
use std::fmt;

/// Launches that compute a node, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// The launches, in order.
    pub launches: Vec<Launch>,
    /// Bytes of scratch that they share.
    pub workspace: usize,
    /// What [`Operand::Fault`] says, if a launch has it as a parameter.
    pub fault: Option<Fault>,
}

/// What may be wrong with the values of a call's operands: an error that names what was found.
///
/// Its word of device memory is [`Fault::NONE`] before the launches. A kernel that finds a fault leaves a position and a number
/// there, those of the smallest position if there are several, and touches nothing outside its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An index is out of range.
    Index {
        /// What the indices are, like `index`.
        what: &'static str,
        /// What they must be below.
        bound: usize,
    },
    /// A mask has another number of bits than there are values to put in their places.
    Values {
        /// How many values there are.
        count: usize,
    },
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Launch {
    /// A kernel of our own.
    Kernel(Kernel),
    /// Matrix products by the library.
    Product(Product),
}

/// A kernel of our own, with its sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// CUDA C that follows the prelude. It has one `extern "C" __global__` function, named `kernel`. Equal sources are
    /// compiled once, so sizes that differ from node to node are parameters.
    pub source: String,
    /// Blocks in each direction.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// What the function is called with, in order.
    pub parameters: Vec<Parameter>,
    /// Whether all parameters but the last are passed as one, a table of eight bytes for each.
    pub table: bool,
}

impl Kernel {
    /// Bytes that parameters may take.
    pub const PARAMETER_BYTES: usize = 4096;
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Parameter {
    /// An address.
    Pointer(Pointer),
    /// A `long long`.
    Integer(i64),
    /// A `float`.
    Float(f32),
}

/// An address: so many bytes after the start of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The operand.
    pub operand: Operand,
    /// Bytes after its start.
    pub offset: usize,
}

/// An operand of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// An input.
    Read(usize),
    /// An output. Where the node accumulates, outputs that are reduced over the batch hold what is added to.
    Write(usize),
    /// The scratch memory of the call.
    Workspace,
    /// The word of the call's [`Fault`].
    Fault,
}

/// `count` row-major products `C = A · B`, or `C = C + A · B`, summed in f32 (f64 of f64), with a bias that is added before C is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
    /// The first factor, `[m,k]`, or `[k,m]` if transposed.
    pub a: Matrix,
    /// The second factor, `[k,n]`, or `[n,k]` if transposed.
    pub b: Matrix,
    /// The result, `[m,n]`.
    pub c: Matrix,
    /// Whether the product is added to C.
    pub accumulate: bool,
    /// Number of products.
    pub count: usize,
    /// A number for each column of C, of C's type. Nothing else is added to C then.
    pub bias: Option<Pointer>,
    /// Whether the factors, which are f32, are rounded to TF32.
    pub tf32: bool,
}

/// A matrix of a [`Product`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Where the first one starts.
    pub start: Pointer,
    /// Its element type.
    pub dtype: DType,
    /// Whether it is stored transposed.
    pub transposed: bool,
    /// Elements between the starts of consecutive stored rows.
    pub row_stride: usize,
    /// Elements between the starts of consecutive products' matrices.
    pub stride: usize,
}

impl Fault {
    /// The word where nothing is wrong.
    pub const NONE: u64 = u64::MAX;

    /// What a word says, if it names a fault.
    pub fn message(&self, word: u64) -> Option<String> {
        let (position, number) = (word >> 32, word as u32 as i32);
        let message = match self {
            Self::Index { what, bound } => {
                format!("{what} {number} at position {position} is not below {bound}")
            }
            Self::Values { count } => format!("the mask keeps {number} elements, there are {count} values"),
        };
        (word != Self::NONE).then_some(message)
    }
}

impl Matrix {
    /// The same elements as the transposed matrix.
    pub fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }
}

impl Pointer {
    /// The address so many bytes further.
    pub fn after(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

/// In a few words: the sizes of a product, or the first comment of a kernel's source.
impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Product(Product { m, n, k, a, b, c, accumulate, count, bias, tf32 }) => {
                let [ta, tb] = [a.transposed, b.transposed].map(|yes| if yes { "ᵀ" } else { "" });
                let added = if *accumulate { " added" } else { "" };
                let bias = if bias.is_some() { " with a bias" } else { "" };
                let rounded = if *tf32 { " in tf32" } else { "" };
                write!(
                    f,
                    "{count} × product {m} × {n} × {k}, {}{ta} · {}{tb} → {}{rounded}{added}{bias}",
                    a.dtype, b.dtype, c.dtype
                )
            }
            Self::Kernel(kernel) => {
                let comment = kernel.source.lines().find_map(|line| line.strip_prefix("// "));
                let [x, y, z] = kernel.blocks;
                write!(f, "{} ({x} × {y} × {z} blocks)", comment.unwrap_or("kernel"))
            }
        }
    }
}

impl Operand {
    /// The address so many bytes after its start.
    pub fn at(self, offset: usize) -> Pointer {
        Pointer { operand: self, offset }
    }
}

impl From<Pointer> for Parameter {
    fn from(pointer: Pointer) -> Self {
        Self::Pointer(pointer)
    }
}

impl From<Operand> for Parameter {
    fn from(operand: Operand) -> Self {
        operand.at(0).into()
    }
}

impl From<usize> for Parameter {
    fn from(number: usize) -> Self {
        Self::Integer(number as i64)
    }
}

impl From<f32> for Parameter {
    fn from(number: f32) -> Self {
        Self::Float(number)
    }
}

impl Call {
    /// A call of one kernel, without scratch.
    pub fn of(kernel: Kernel) -> Self {
        Self { launches: vec![Launch::Kernel(kernel)], ..Self::default() }
    }

    /// With the f32 factors of products rounded to TF32, if that is asked for. Kernels of our own multiply f32 as it is.
    pub fn in_tf32(mut self, tf32: bool) -> Self {
        for launch in &mut self.launches {
            if let Launch::Product(product) = launch {
                product.tf32 = tf32 && product.a.dtype == DType::F32;
            }
        }
        self
    }
}
