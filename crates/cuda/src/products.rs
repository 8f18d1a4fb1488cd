//! Matrix products by cuBLASLt.

use crate::driver::library::library;
use crate::driver::{Address, Context, CudaError, DeviceMemory, Handle, Stream};
use crate::kernels::{Matrix, Product};
use plimsoll_tensor::DType;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

library! {
    /// cuBLASLt.
    CublasLtApi {
        cublasLtCreate(*mut Handle) -> c_int;
        cublasLtDestroy(Handle) -> c_int;
        cublasLtGetVersion() -> usize;
        cublasLtMatmulDescCreate(*mut Handle, c_int, c_int) -> c_int;
        cublasLtMatmulDescDestroy(Handle) -> c_int;
        cublasLtMatmulDescSetAttribute(Handle, c_int, *const c_void, usize) -> c_int;
        cublasLtMatrixLayoutCreate(*mut Handle, c_int, u64, u64, i64) -> c_int;
        cublasLtMatrixLayoutDestroy(Handle) -> c_int;
        cublasLtMatrixLayoutSetAttribute(Handle, c_int, *const c_void, usize) -> c_int;
        cublasLtMatmulPreferenceCreate(*mut Handle) -> c_int;
        cublasLtMatmulPreferenceDestroy(Handle) -> c_int;
        cublasLtMatmulPreferenceSetAttribute(Handle, c_int, *const c_void, usize) -> c_int;
        cublasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Choice, *mut c_int) -> c_int;
        cublasLtMatmulAlgoCheck(Handle, Handle, Handle, Handle, Handle, Handle, *const Algorithm, *mut Choice) -> c_int;
        cublasLtMatmul(Handle, Handle, *const c_void, Address, Handle, Address, Handle, *const c_void, Address, Handle, Address, Handle, *const Algorithm, Address, usize, Handle) -> c_int;
    }
}

/// An algorithm, which only the library understands.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Algorithm([u64; 8]);

/// An algorithm that the library proposes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// Algorithms that the library is asked for.
const PROPOSALS: usize = 8;

/// The rows that the algorithm which decides the bits is proposed for, and the matrices where there are several. What the library proposes
/// for the rows at hand depends on them, and not all algorithms add the terms of a sum in the same order: a batch would have other bits in
/// micro-batches than whole.
const ROWS: usize = 8192;
const MATRICES: usize = 64;

/// Bytes of workspace that the library's check names for algorithms which it proposes without, and which run without.
const UNUSED_WORKSPACE: usize = 4;
/// Bytes of workspace that algorithms of products in TF32 may use. The fastest on tensor cores of compute capability 9.0 need 131; cuBLASLt 13.1
/// proposes them from somewhere above 4 KiB on.
const TF32_WORKSPACE: usize = 64 << 10;

const NO_CHOICE: Choice =
    Choice { algorithm: Algorithm([0; 8]), workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };

/// Sums of f32, and of f64, by the library's numbers.
const COMPUTE_F32: c_int = 68;
const COMPUTE_F64: c_int = 70;
/// Sums of f32 of products of f32 rounded to TF32.
const COMPUTE_TF32: c_int = 77;
/// What the library does to a product before it is stored: it adds a number to each of our columns.
const BIAS: u32 = 4;
/// Attributes of a product, a layout and a preference, by the library's numbers.
const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
const BATCH_COUNT: c_int = 5;
const BATCH_STRIDE: c_int = 6;
const MOST_WORKSPACE: c_int = 1;
const REDUCTION_SCHEMES: c_int = 3;
const ALIGNMENT: [c_int; 4] = [5, 6, 7, 8];

/// The library, with its handle.
pub(crate) struct Products {
    api: CublasLtApi,
    handle: Handle,
    /// The workspace of all products, one after the other.
    workspace: DeviceMemory,
    /// Which of the proposed algorithms computes products of a geometry.
    chosen: Mutex<HashMap<String, usize>>,
}

// SAFETY: the library's handles may be used from any thread.
unsafe impl Send for Products {}
// SAFETY: as above.
unsafe impl Sync for Products {}

impl Products {
    /// The library of this machine, in a context.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let api = load()?;
        let workspace = DeviceMemory::new(context, TF32_WORKSPACE)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        check("cublasLtCreate", unsafe { (api.cublasLtCreate)(&mut handle) })?;
        Ok(Self { api, handle, workspace, chosen: Mutex::default() })
    }

    /// The library's version, like `13.1.0`.
    pub fn version(&self) -> String {
        version(&self.api)
    }

    /// Which of the proposed algorithms computes products of a geometry; the first, unless [`Products::choose`] said otherwise.
    pub fn chosen(&self, geometry: &str) -> Option<usize> {
        self.choices().get(geometry).copied()
    }

    /// Says which one does.
    pub fn choose(&self, geometry: String, proposal: usize) {
        self.choices().insert(geometry, proposal);
    }

    fn choices(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All of a product that its algorithm depends on.
pub(crate) fn geometry(product: &Product) -> String {
    let Product { m, n, k, a, b, c, accumulate, count, bias, tf32 } = product;
    let matrix = |matrix: &Matrix| {
        let Matrix { dtype, transposed, row_stride, stride, .. } = matrix;
        format!("{dtype} {transposed} {row_stride} {stride} {}", alignment(matrix))
    };
    let sums = format!("{accumulate} {}{}", bias.is_some(), if *tf32 { " tf32" } else { "" });
    format!("{count} x {m} x {n} x {k}, {sums}; {}; {}; {}", matrix(a), matrix(b), matrix(c))
}

/// The version of this machine's library, like `13.1.0`.
pub(crate) fn installed_version() -> Result<String, CudaError> {
    load().map(|api| version(&api))
}

fn load() -> Result<CublasLtApi, CudaError> {
    let names = [
        "libcublasLt.so.13",
        "libcublasLt.so.12",
        "libcublasLt.so",
        "cublasLt64_13.dll",
        "cublasLt64_12.dll",
    ];
    CublasLtApi::load("cuBLASLt", &names)
}

fn version(api: &CublasLtApi) -> String {
    // SAFETY: a plain call.
    let number = unsafe { (api.cublasLtGetVersion)() };
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: created in `new`.
        let _ = unsafe { (self.api.cublasLtDestroy)(self.handle) };
    }
}

/// A product with its algorithm, ready to run.
pub(crate) struct PreparedProduct {
    products: Arc<Products>,
    product: Product,
    description: Object,
    /// The layouts of B, A and C: the library stores columns, so it computes `Cᵀ = Bᵀ · Aᵀ`.
    layouts: [Object; 3],
    algorithm: Algorithm,
}

// SAFETY: as for `Products`.
unsafe impl Send for PreparedProduct {}
// SAFETY: as above; what running changes is the caller's promise.
unsafe impl Sync for PreparedProduct {}

impl PreparedProduct {
    /// With the algorithm that was chosen for such products, or the one whose bits all others must have.
    pub fn new(products: &Arc<Products>, product: &Product) -> Result<Self, CudaError> {
        let chosen = products.chosen(&geometry(product)).unwrap_or(0);
        let mut all = Self::all(products, product)?;
        Ok(all.swap_remove(chosen.min(all.len() - 1)))
    }

    /// With each of the algorithms that the library proposes, at least one. The first is the one that decides the bits: it does not depend
    /// on the number of rows or matrices. Algorithms that cut sums into parts are left out, because their bits would. In TF32, those with a
    /// workspace come before those without.
    pub fn all(products: &Arc<Products>, product: &Product) -> Result<Vec<Self>, CudaError> {
        let (own, usual) = (Description::new(products, product)?, usual(product));
        let workspace = workspace(product);
        let mut algorithms = Description::new(products, &usual)?.proposals(&usual, workspace)?;
        if usual != *product {
            algorithms.extend(own.proposals(product, workspace)?);
        }
        if workspace > 0 {
            algorithms.extend(own.proposals(product, 0)?);
        }
        algorithms.retain(|algorithm| own.can_use(algorithm, workspace.max(UNUSED_WORKSPACE)));
        if algorithms.is_empty() {
            let Product { m, n, k, .. } = product;
            let error = format!("no algorithm for {m} x {n} x {k}");
            return Err(CudaError::Call { call: "cublasLtMatmulAlgoGetHeuristic", error });
        }
        let prepared = algorithms.into_iter().map(|algorithm| {
            let Description { kind, layouts, .. } = Description::new(products, product)?;
            let (products, product) = (products.clone(), *product);
            Ok(Self { products, product, description: kind, layouts, algorithm })
        });
        prepared.collect()
    }

    /// Queues the product.
    ///
    /// # Safety
    /// The addresses are those of matrices of such extents and of the bias, if there is one; nothing else uses C until the product is
    /// done, no other thread runs this, and all products of the library's handle are queued on one stream.
    pub unsafe fn run(
        &self,
        stream: &Stream,
        [a, b, c]: [Address; 3],
        bias: Option<Address>,
    ) -> Result<(), CudaError> {
        stream.context.enter()?;
        if let Some(bias) = bias {
            self.description.set(BIAS_POINTER, bias)?;
        }
        let added = if self.product.accumulate { 1.0 } else { 0.0 };
        let (single, double) = ([1.0_f32, added as f32], [1.0_f64, added]);
        let scale = |i: usize| -> *const c_void {
            if self.product.c.dtype == DType::F64 {
                (&raw const double[i]).cast()
            } else {
                (&raw const single[i]).cast()
            }
        };
        let api = &self.products.api;
        let layouts = [0, 1, 2].map(|i: usize| self.layouts[i].handle);
        // SAFETY: all handles are alive; the rest is the caller's promise.
        let code = unsafe {
            (api.cublasLtMatmul)(
                self.products.handle,
                self.description.handle,
                scale(0),
                b,
                layouts[0],
                a,
                layouts[1],
                scale(1),
                c,
                layouts[2],
                c,
                layouts[2],
                &self.algorithm,
                self.products.workspace.start,
                workspace(&self.product),
                stream.handle,
            )
        };
        check("cublasLtMatmul", code)
    }
}

/// Bytes of workspace that a product's algorithm may use.
fn workspace(product: &Product) -> usize {
    if product.tf32 { TF32_WORKSPACE } else { 0 }
}

/// The same product of the rows, or the matrices, that the algorithm which decides the bits is proposed for. Where the first factor is
/// stored transposed, its rows are none of the batch's.
fn usual(product: &Product) -> Product {
    match product.count {
        1 if product.a.transposed => *product,
        1 => Product { m: ROWS, ..*product },
        _ => Product { count: MATRICES, ..*product },
    }
}

/// A product in the library's terms.
struct Description {
    products: Arc<Products>,
    kind: Object,
    layouts: [Object; 3],
}

impl Description {
    fn new(products: &Arc<Products>, product: &Product) -> Result<Self, CudaError> {
        let kind = Object::description(products, product)?;
        kind.set(TRANSPOSE_A, c_int::from(product.b.transposed))?;
        kind.set(TRANSPOSE_B, c_int::from(product.a.transposed))?;
        if product.bias.is_some() {
            kind.set(EPILOGUE, BIAS)?;
            // Any that is aligned as biases are: it is set again before each run.
            kind.set(BIAS_POINTER, crate::target::ALIGNMENT as Address)?;
        }
        let Product { m, n, k, count, .. } = *product;
        let layout = |matrix: &Matrix, rows, columns| Object::layout(products, matrix, rows, columns, count);
        let layouts = [layout(&product.b, k, n)?, layout(&product.a, m, k)?, layout(&product.c, m, n)?];
        Ok(Self { products: products.clone(), kind, layouts })
    }

    /// The handles of B, A and C.
    fn matrices(&self) -> [Handle; 3] {
        [0, 1, 2].map(|i: usize| self.layouts[i].handle)
    }

    /// The algorithms that the library proposes with so many bytes of workspace, the best by its own estimate first.
    fn proposals(&self, product: &Product, workspace: usize) -> Result<Vec<Algorithm>, CudaError> {
        let preference = Object::preference(&self.products)?;
        preference.set(MOST_WORKSPACE, workspace as u64)?;
        preference.set(REDUCTION_SCHEMES, 0_u32)?;
        let matrices = [&product.b, &product.a, &product.c, &product.c];
        for (attribute, matrix) in ALIGNMENT.into_iter().zip(matrices) {
            preference.set(attribute, alignment(matrix))?;
        }
        let (mut choices, mut count) = ([NO_CHOICE; PROPOSALS], 0);
        let [b, a, c] = self.matrices();
        // SAFETY: all handles are alive, and the result has room for so many choices.
        let code = unsafe {
            (self.products.api.cublasLtMatmulAlgoGetHeuristic)(
                self.products.handle,
                self.kind.handle,
                b,
                a,
                c,
                c,
                preference.handle,
                choices.len() as c_int,
                choices.as_mut_ptr(),
                &mut count,
            )
        };
        check("cublasLtMatmulAlgoGetHeuristic", code)?;
        let found = choices.iter().take(usize::try_from(count).unwrap_or(0));
        Ok(found.filter(|choice| choice.state == 0).map(|choice| choice.algorithm).collect())
    }

    /// Whether an algorithm computes it, with so many bytes of workspace at most.
    fn can_use(&self, algorithm: &Algorithm, workspace: usize) -> bool {
        let mut choice = NO_CHOICE;
        let [b, a, c] = self.matrices();
        // SAFETY: all handles are alive, and the pointers are valid.
        let code = unsafe {
            (self.products.api.cublasLtMatmulAlgoCheck)(
                self.products.handle,
                self.kind.handle,
                b,
                a,
                c,
                c,
                algorithm,
                &mut choice,
            )
        };
        code == 0 && choice.workspace <= workspace
    }
}

/// An object of the library: what kind of product it is, how a matrix lies in memory, or which algorithms are wanted.
struct Object {
    handle: Handle,
    set: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    /// Keeps the library loaded.
    _products: Arc<Products>,
}

impl Object {
    /// What kind of product it is: what it is summed in.
    fn description(products: &Arc<Products>, product: &Product) -> Result<Self, CudaError> {
        let sums = match product.c.dtype {
            DType::F64 => (COMPUTE_F64, DType::F64),
            _ if product.tf32 => (COMPUTE_TF32, DType::F32),
            _ => (COMPUTE_F32, DType::F32),
        };
        let mut handle = std::ptr::null_mut();
        let api = &products.api;
        // SAFETY: the pointer is valid.
        let code = unsafe { (api.cublasLtMatmulDescCreate)(&mut handle, sums.0, number(sums.1)?) };
        check("cublasLtMatmulDescCreate", code)?;
        let (set, destroy) = (api.cublasLtMatmulDescSetAttribute, api.cublasLtMatmulDescDestroy);
        Ok(Self { handle, set, destroy, _products: products.clone() })
    }

    /// How a matrix lies in memory that is `[rows, columns]` once it is transposed, if it is.
    fn layout(
        products: &Arc<Products>,
        matrix: &Matrix,
        rows: usize,
        columns: usize,
        count: usize,
    ) -> Result<Self, CudaError> {
        let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
        let (dtype, stride) = (number(matrix.dtype)?, matrix.row_stride as i64);
        let mut handle = std::ptr::null_mut();
        let api = &products.api;
        // SAFETY: the pointer is valid. The library stores columns: our rows are its columns.
        let code = unsafe {
            (api.cublasLtMatrixLayoutCreate)(&mut handle, dtype, columns as u64, rows as u64, stride)
        };
        check("cublasLtMatrixLayoutCreate", code)?;
        let (set, destroy) = (api.cublasLtMatrixLayoutSetAttribute, api.cublasLtMatrixLayoutDestroy);
        let layout = Self { handle, set, destroy, _products: products.clone() };
        if count > 1 {
            layout.set(BATCH_COUNT, count as i32)?;
            layout.set(BATCH_STRIDE, matrix.stride as i64)?;
        }
        Ok(layout)
    }

    /// Which algorithms are wanted.
    fn preference(products: &Arc<Products>) -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        let api = &products.api;
        // SAFETY: the pointer is valid.
        let code = unsafe { (api.cublasLtMatmulPreferenceCreate)(&mut handle) };
        check("cublasLtMatmulPreferenceCreate", code)?;
        let (set, destroy) = (api.cublasLtMatmulPreferenceSetAttribute, api.cublasLtMatmulPreferenceDestroy);
        Ok(Self { handle, set, destroy, _products: products.clone() })
    }

    fn set<T>(&self, attribute: c_int, value: T) -> Result<(), CudaError> {
        // SAFETY: the handle is alive; the attribute has this type.
        let code = unsafe { (self.set)(self.handle, attribute, (&raw const value).cast(), size_of::<T>()) };
        check("setting an attribute of a product", code)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: created before, and destroyed once. Nothing can be done about an error.
        let _ = unsafe { (self.destroy)(self.handle) };
    }
}

/// The library's number of an element type.
fn number(dtype: DType) -> Result<c_int, CudaError> {
    match dtype {
        DType::F32 => Ok(0),
        DType::F64 => Ok(1),
        DType::F16 => Ok(2),
        DType::BF16 => Ok(14),
        DType::I32 | DType::I64 | DType::U8 | DType::Bool => Err(CudaError::Call {
            call: "cublasLtMatrixLayoutCreate",
            error: format!("no products of {dtype}"),
        }),
    }
}

/// The alignment that every matrix of a product has at least: operands are aligned to [`crate::target::ALIGNMENT`].
fn alignment(matrix: &Matrix) -> u32 {
    let bytes = crate::target::ALIGNMENT | matrix.start.offset | (matrix.stride * matrix.dtype.bytes());
    1 << bytes.trailing_zeros()
}

fn check(call: &'static str, code: c_int) -> Result<(), CudaError> {
    if code == 0 {
        return Ok(());
    }
    let words = match code {
        1 => "the library is not initialized",
        3 => "out of memory",
        7 => "an argument is invalid",
        8 => "the architecture is too old",
        13 => "the kernel failed",
        15 => "not supported",
        _ => "internal error",
    };
    Err(CudaError::Call { call, error: format!("{words} ({code})") })
}
