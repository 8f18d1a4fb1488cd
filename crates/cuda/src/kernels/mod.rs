//! Which launches compute a node: a pure function of the node's op and types, without a device.
//!
//! Each family of ops has its file, and its CUDA C beside it.

mod attention;
mod builder;
mod call;
mod conv;
mod elementwise;
mod index;
mod join;
mod linear_loss;
mod loss;
mod matmul;
mod movement;
mod norm;
mod pool;
mod prune;
mod quantise;
mod random;
mod recurrent;
mod reduce;
mod reduction;
mod resize;
mod strided;

pub use call::{Call, Fault, Kernel, Launch, Matrix, Operand, Parameter, Pointer, Product};

pub(crate) use builder::define;
pub(crate) use elementwise::stored;
pub use join::{join, joins};
use plimsoll_graph::Op;
use plimsoll_plan::KernelQuery;

/// What comes before every kernel's source: element types and their conversions.
pub const PRELUDE: &str = include_str!("prelude.cu");

/// The compute capability from which on a kernel can wait for the one before it.
pub(crate) const WAITING_KERNELS: (u32, u32) = (9, 0);

/// What a kernel does first, where it can: it lets the next one be made ready as soon as all its own blocks run, and waits until the
/// one before it has ended and all that it wrote is seen. As each one waits, all before it have ended.
const WAIT: &str = "
#if __CUDA_ARCH__ >= 900
    asm volatile(\"griddepcontrol.launch_dependents;\\n\\tgriddepcontrol.wait;\" ::: \"memory\");
#endif
";

/// What is compiled for a device: a kernel's source behind the prelude, which waits for the kernel before it.
pub(crate) fn device_source(source: &str) -> String {
    [PRELUDE, "\n", &waiting(source)].concat()
}

/// Sources as one program, where each kernel has a number behind its name: the compiler takes less time for it than for each.
pub(crate) fn device_program(sources: &[&str]) -> String {
    let mut text = PRELUDE.to_string();
    for (i, source) in sources.iter().enumerate() {
        text += &format!("\nnamespace source{i} {{\n#define kernel kernel{i}\n{}\n}}\n", waiting(source));
        let macros = source.lines().filter_map(|line| line.strip_prefix("#define "));
        let names = macros.filter_map(|rest| rest.split([' ', '(']).next()).chain(["kernel"]);
        names.for_each(|name| text += &format!("#undef {name}\n"));
    }
    text
}

/// A source whose kernel first waits for the one before it.
fn waiting(source: &str) -> String {
    let body = source.find("__global__").and_then(|start| Some(start + source[start..].find('{')? + 1));
    match body.map(|body| source.split_at(body)) {
        Some((head, body)) => [head, WAIT, body].concat(),
        None => source.into(),
    }
}

/// The launches for a node, if there are kernels for it.
pub fn find(query: &KernelQuery<'_>) -> Option<Call> {
    // Runs are on one device: blocks only matter where the batch can be split, and one block fills the device better.
    let fold_rows = if query.mixed { 0 } else { query.fold_rows };
    let query = &KernelQuery { fold_rows, ..query.clone() };
    match query.op {
        Op::Elementwise(op) => elementwise::single(*op, query),
        Op::Fused(region) => elementwise::fused(region, query),
        Op::Movement(op) => movement::find(op, query),
        Op::Reduce(op) => reduce::find(op, query),
        Op::MatMul(op) => matmul::find(op, query),
        Op::Conv(op) => conv::find(op, query),
        Op::Pool(op) => pool::find(op, query),
        Op::Resize(op) => resize::find(op, query),
        Op::Norm(op) => norm::find(op, query),
        Op::Attention(op) => attention::find(op, query),
        Op::Recurrent(op) => recurrent::find(*op, query),
        Op::Index(op) => index::find(op, query),
        Op::Loss(op) => linear_loss::find(op, query).or_else(|| loss::find(op, query)),
        Op::Random(op) => random::find(op, query),
        Op::Quantise(op) => quantise::find(*op, query),
        Op::Prune(op) => prune::find(op, query),
        // Bytes are multiplied on the processor.
        Op::Int8(_) => None,
        // What passes to and from other devices is copied, not computed.
        Op::Exchange(_) => None,
    }
}
