//! Tensors, and values: tensors or the first error on the way to them.

use crate::call::Operand;
use crate::context::{Context, Eager};
use crate::error::{Error, Result};
use crate::memory::Site;
use crate::program::Batch;
use crate::trace::Trace;
use crate::{placement, tape};
use plimsoll_graph::{BatchMark, ValueId};
use plimsoll_tensor::{DType, Element, Shape, TensorType};
use std::borrow::Cow;
use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A tensor that was computed. Clones are the same tensor; its memory is free when the last one is dropped.
///
/// Operators and methods give a [`Value`]: the tensor or the error. Values take part in further operations, so a whole
/// expression has one `?`.
///
/// ```
/// use plimsoll_eager::tensor;
/// let a = tensor([[1.0f32, 2.0], [3.0, 4.0]])?;
/// let b = tensor([10.0f32, 20.0])?;
/// let c = ((&a + &b) * (&a - 1.0) / 2.0).get()?;
/// assert_eq!(c.to_vec::<f32>()?, [0.0, 11.0, 13.0, 36.0]);
/// assert_eq!(a.matmul(&a).sum(&[0, 1], false).item()?, 54.0);
/// println!("{c}");
/// # Ok::<(), plimsoll_eager::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    pub(crate) ty: Arc<TensorType>,
    pub(crate) batch: Batch,
    /// Names it on tapes; clones have the same.
    pub(crate) id: u64,
    pub(crate) storage: Storage,
}

#[derive(Clone)]
pub(crate) enum Storage {
    Buffer(Arc<Handle>),
    /// A value of a function that is traced.
    Traced(Arc<Trace>, ValueId),
}

/// The owner of a buffer.
pub(crate) struct Handle {
    pub context: Arc<Context>,
    pub buffer: u32,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.lock().values.memory.release(self.buffer);
    }
}

/// A tensor, or the first error of the expression that was to compute it.
#[must_use = "a value may be an error: end the expression with `.get()?`"]
pub struct Value(pub(crate) Result<Tensor>);

/// A tensor of the default context: of a vector, nested arrays, or a host tensor.
#[track_caller]
pub fn tensor(elements: impl Into<plimsoll_tensor::Tensor>) -> Result<Tensor> {
    Eager::default_context()?.tensor(elements)
}

/// Ids that a thread takes from those of all threads at once.
const IDS_AT_ONCE: u64 = 1 << 12;

static IDS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The next id of this thread, and the end of those that it has taken.
    static OWN_IDS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

fn new_id() -> u64 {
    let (mut next, mut end) = OWN_IDS.get();
    if next == end {
        next = IDS.fetch_add(IDS_AT_ONCE, Ordering::Relaxed);
        end = next + IDS_AT_ONCE;
    }
    OWN_IDS.set((next + 1, end));
    next
}

impl Tensor {
    pub(crate) fn of(ty: Arc<TensorType>, batch: Batch, handle: Arc<Handle>) -> Self {
        Self { ty, batch, id: new_id(), storage: Storage::Buffer(handle) }
    }

    pub(crate) fn traced(ty: Arc<TensorType>, batch: Batch, trace: Arc<Trace>, value: ValueId) -> Self {
        Self { ty, batch, id: new_id(), storage: Storage::Traced(trace, value) }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        match &self.storage {
            Storage::Buffer(handle) => &handle.context,
            Storage::Traced(trace, _) => &trace.context,
        }
    }

    pub(crate) fn handle(&self) -> Option<&Arc<Handle>> {
        match &self.storage {
            Storage::Buffer(handle) => Some(handle),
            Storage::Traced(..) => None,
        }
    }

    pub(crate) fn trace(&self) -> Option<&Arc<Trace>> {
        match &self.storage {
            Storage::Buffer(_) => None,
            Storage::Traced(trace, _) => Some(trace),
        }
    }

    /// Its type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The context that it belongs to.
    pub fn eager(&self) -> Eager {
        Eager(self.context().clone())
    }

    /// The name of the device that it is on.
    pub fn device(&self) -> &str {
        &self.context().device
    }

    /// A copy on another device; the tensor itself if it is there. Tapes follow it: gradients come back over the same way. See
    /// [`Eager::logical`].
    #[track_caller]
    pub fn to(&self, device: &Eager) -> Result<Self> {
        self.copy_to(&device.0, Location::caller())
    }

    pub(crate) fn copy_to(&self, context: &Arc<Context>, site: Site) -> Result<Self> {
        if Arc::ptr_eq(self.context(), context) {
            return Ok(self.clone());
        }
        let Some(source) = self.handle() else {
            let reason =
                "a compiled function is on one device: copy its inputs before it, and its results after it";
            return Err(Error::Argument(reason.into()));
        };
        // Locked in one order everywhere, so that copies in opposite directions do not wait for each other.
        let (mut from, mut into);
        if Arc::as_ptr(&source.context) < Arc::as_ptr(context) {
            from = source.context.lock();
            into = context.lock();
        } else {
            into = context.lock();
            from = source.context.lock();
        }
        into.values.memory.ops += 1;
        let buffer = into.values.memory.allocate(&self.ty, "copy", site)?;
        let brought = from.values.memory.bring(&[source.buffer], "copy");
        let copied =
            brought.and_then(|()| from.values.memory.copy_to(source.buffer, &mut into.values.memory, buffer));
        drop((from, into));
        let handle = Arc::new(Handle { context: context.clone(), buffer });
        copied?;
        let copy = Self::of(self.ty.clone(), self.batch, handle);
        placement::log_copy(self, &copy);
        Ok(tape::follow(self, copy))
    }

    /// The error of an op whose other operands are in a context that this one is not in.
    pub(crate) fn elsewhere(&self, op: &'static str, other: &Context) -> Error {
        let (first, second) = (other.device.to_string(), self.device().to_string());
        let second = if first == second { format!("another context of {second}") } else { second };
        Error::Devices { op, first, second }
    }

    /// The same tensor, with axis 0 marked as the batch. Marks propagate as in graphs: sums over the batch then fold in the
    /// blocks of a graph, so results have the bits of a graph over the same batch. Without a mark a sum is a sum.
    pub fn batch(&self) -> Self {
        let rows = self.context().executor.target().numerics().block_rows;
        self.batch_in_blocks(rows.next_power_of_two())
    }

    /// As [`Tensor::batch`], with folds over blocks of so many examples.
    pub fn batch_in_blocks(&self, block: usize) -> Self {
        match self.ty.shape.first() {
            Some(&examples) if examples > 0 => {
                let batch = Batch { mark: BatchMark::input(true), examples, block: block.max(1) };
                Self { batch, ..self.clone() }
            }
            _ => self.clone(),
        }
    }

    /// The same tensor without a mark, as if it came from outside: for what was reduced over one batch and is used with
    /// another. Optimizers do this to variables, and tapes to what they watch.
    pub fn unmarked(&self) -> Self {
        Self { batch: Batch::NONE, ..self.clone() }
    }

    /// The elements in row-major order.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let wrong = |_| Error::Elements { ty: (*self.ty).clone(), asked: T::DTYPE };
        if T::DTYPE != self.ty.dtype {
            return Err(wrong(()));
        }
        self.to_host()?.into_vec().map_err(|_| wrong(()))
    }

    /// A copy in host memory.
    pub fn to_host(&self) -> Result<plimsoll_tensor::Tensor> {
        let Some(handle) = self.handle() else {
            return Err(Error::Tracing { what: "reading", ty: (*self.ty).clone() });
        };
        let mut host = plimsoll_tensor::Tensor::zeros((*self.ty).clone());
        let mut state = handle.context.lock();
        state.values.memory.bring(&[handle.buffer], "reading")?;
        state.values.memory.read(handle.buffer, host.as_bytes_mut())?;
        Ok(host)
    }

    /// The number in a tensor of one element.
    pub fn item(&self) -> Result<f64> {
        if self.ty.shape.elements() != 1 {
            return Err(Error::NotOneNumber((*self.ty).clone()));
        }
        Ok(self.to_host()?.to_f64()[0])
    }
}

impl Value {
    /// The tensor, or the first error.
    pub fn get(self) -> Result<Tensor> {
        self.0
    }

    /// [`Tensor::to_vec`].
    pub fn to_vec<T: Element>(self) -> Result<Vec<T>> {
        self.0?.to_vec()
    }

    /// [`Tensor::to`].
    #[track_caller]
    pub fn to(self, device: &Eager) -> Result<Tensor> {
        self.0?.to(device)
    }

    /// [`Tensor::item`].
    pub fn item(self) -> Result<f64> {
        self.0?.item()
    }

    /// [`Tensor::batch`].
    pub fn batch(self) -> Self {
        Self(self.0.map(|tensor| tensor.batch()))
    }

    /// [`Tensor::unmarked`].
    pub fn unmarked(self) -> Self {
        Self(self.0.map(|tensor| tensor.unmarked()))
    }
}

impl From<Value> for Result<Tensor> {
    fn from(value: Value) -> Self {
        value.0
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self(Ok(tensor))
    }
}

impl From<&Tensor> for Value {
    fn from(tensor: &Tensor) -> Self {
        Self(Ok(tensor.clone()))
    }
}

impl From<Result<Tensor>> for Value {
    fn from(result: Result<Tensor>) -> Self {
        Self(result)
    }
}

/// What operators and methods take: a tensor (moved in, it may be written over), a reference to one, a value, a result, or
/// a number of the other operand's element type.
pub trait IntoOperand: Sized + sealed::Sealed {
    /// A tensor; a number is an error.
    fn tensor(self) -> Result<Tensor> {
        match self.operand()? {
            Operand::Tensor(tensor) => Ok(tensor.into_owned()),
            Operand::Number(number) => Err(Error::Argument(format!("{number} is a number, not a tensor"))),
        }
    }
}

pub(crate) mod sealed {
    use super::{Cow, Operand, Result, Tensor, Value};

    /// Only this crate's types, and numbers.
    pub trait Sealed {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "nobody outside can name the trait")]
        fn operand<'a>(self) -> Result<Operand<'a>>
        where
            Self: 'a;
    }

    macro_rules! operands {
        ($($type:ty: $value:ident => $operand:expr;)*) => {
            $(
                #[allow(private_interfaces, reason = "as above")]
                impl Sealed for $type {
                    #[inline]
                    fn operand<'a>(self) -> Result<Operand<'a>>
                    where
                        Self: 'a,
                    {
                        let $value = self;
                        $operand
                    }
                }

                impl super::IntoOperand for $type {}
            )*
        };
    }

    operands! {
        Tensor: tensor => Ok(Operand::from(tensor));
        &Tensor: tensor => Ok(Operand::Tensor(Cow::Borrowed(tensor)));
        Value: value => value.0.map(Operand::from);
        Result<Tensor>: result => result.map(Operand::from);
        f64: number => Ok(Operand::Number(number));
        f32: number => Ok(Operand::Number(number.into()));
        i32: number => Ok(Operand::Number(number.into()));
    }
}
