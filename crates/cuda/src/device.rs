//! A GPU as the runtime sees it: kernels and products queued on one stream, and memory that the host reaches through it.

use crate::compiler::Compiler;
use crate::driver::{Address, Context, CudaError, DeviceMemory, Handle, Module, STACK_BYTES, Stream};
use crate::faults::Faults;
use crate::kept::Kept;
use crate::kernels::{Call, Kernel, Launch, Operand, Parameter, Pointer, device_source, find, join, joins};
use crate::products::{PreparedProduct, Products};
use crate::recording::capture;
use crate::staging::{StagedLane, Staging};
use crate::target::ALIGNMENT;
use plimsoll_plan::KernelQuery;
use plimsoll_runtime::{Device, InputLane, Memory, Operands, Recording};
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Parameters of a kernel at most: their values are kept on the stack.
const MOST_PARAMETERS: usize = 96;

/// Those of a kernel with a table: so many words in all.
const TABLE_WORDS: usize = Kernel::PARAMETER_BYTES / size_of::<u64>();

/// The driver gives memory in pages of so many bytes; pieces of up to half a page share some.
const PAGE_BYTES: usize = 2 << 20;

/// A GPU that is open, with what computes on it.
pub(crate) struct CudaDevice {
    pub context: Arc<Context>,
    /// Everything is computed on it, in order.
    pub stream: Arc<Stream>,
    pub compiler: Compiler,
    pub products: Arc<Products>,
    /// The kernels that were loaded, by source.
    modules: Mutex<HashMap<String, Arc<Module>>>,
    faults: Arc<Faults>,
    staging: Arc<Staging>,
    pub kept: Kept,
    /// Bytes of its memory that graphs take.
    graph_bytes: Arc<AtomicUsize>,
    /// Whether products round f32 to TF32; of those that are found from then on.
    pub tf32: AtomicBool,
}

impl CudaDevice {
    /// Opens a GPU. Compiled kernels and chosen algorithms are kept in a folder, if one is given.
    pub fn open(index: usize, folder: Option<PathBuf>) -> Result<Self, CudaError> {
        let context = Arc::new(Context::open(index)?);
        let kept = Kept::new(folder);
        let compiler = Compiler::new(context.gpu.capability, kept.clone())?;
        let stream = Arc::new(Stream::new(&context)?);
        let products = Arc::new(Products::new(&context)?);
        let faults = Arc::new(Faults::new(&context, &stream)?);
        let staging = Arc::new(Staging::new(&context)?);
        let (modules, graph_bytes, tf32) = (Mutex::default(), Arc::default(), AtomicBool::default());
        Ok(Self { context, stream, compiler, products, modules, faults, staging, kept, graph_bytes, tf32 })
    }

    /// Compiles and loads the kernels of calls that are not loaded yet, on several threads.
    pub fn load_all(&self, calls: &[Call]) -> Result<(), CudaError> {
        let kernels = calls.iter().flat_map(|call| &call.launches).filter_map(|launch| match launch {
            Launch::Kernel(kernel) => Some(kernel.source.as_str()),
            Launch::Product(_) => None,
        });
        let sources: BTreeSet<&str> = kernels.collect();
        let sources: Vec<&str> = sources.into_iter().collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.module(source)?;
            }
            Ok(())
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(sources.len());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let panicked = |_| Err(CudaError::Compile("the compiler's thread panicked".into()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).fold(Ok(()), Result::and)
        })
    }

    /// A kernel that is compiled and loaded.
    pub fn module(&self, source: &str) -> Result<Arc<Module>, CudaError> {
        let loaded = || self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = loaded().get(source) {
            return Ok(module.clone());
        }
        let code = self.compiler.compile(&device_source(source))?;
        let module = Module::new(&self.context, &code, c"kernel").map_err(|error| {
            // An old driver refuses code of a compiler of a later generation, with words that do not say so.
            self.context.driver.runs((self.compiler.generation(), 0)).err().unwrap_or(error)
        })?;
        let module = Arc::new(module);
        let stack = module.stack_bytes()?;
        if stack > STACK_BYTES {
            // The driver would take memory for it that no plan knows of.
            return Err(CudaError::Compile(format!(
                "it needs {stack} bytes of stack, {STACK_BYTES} at most:\n{source}"
            )));
        }
        Ok(loaded().entry(source.to_string()).or_insert(module).clone())
    }

    fn prepare(&self, call: &Call) -> Result<Vec<Prepared>, CudaError> {
        let prepare = |launch: &Launch| match launch {
            Launch::Kernel(kernel) => Ok(Prepared::Kernel(self.module(&kernel.source)?)),
            Launch::Product(product) => {
                Ok(Prepared::Product(Box::new(PreparedProduct::new(&self.products, product)?)))
            }
        };
        call.launches.iter().map(prepare).collect()
    }
}

/// How often a launch is timed.
const TIMED: u32 = 10;

impl CudaDevice {
    /// How long each launch of a node takes, in memory of its own that holds zeros.
    pub fn launch_times(&self, query: &KernelQuery<'_>) -> Result<Vec<(String, Duration)>, String> {
        let Some(call) = self.find(query) else { return Ok(Vec::new()) };
        let sizes = query.inputs.iter().chain(&query.outputs).map(|ty| ty.bytes());
        let mut ends = vec![0];
        for bytes in sizes.chain([call.call.workspace]) {
            ends.push(ends[ends.len() - 1] + bytes.next_multiple_of(ALIGNMENT));
        }
        let arena = self.map(ends[ends.len() - 1])?;
        let at = |i: usize| arena.at(ends[i], 0);
        let (inputs, outputs) = (query.inputs.len(), query.outputs.len());
        let reads: Vec<*const u8> = (0..inputs).map(|i| at(i).cast_const()).collect();
        let writes: Vec<*mut u8> = (inputs..inputs + outputs).map(at).collect();
        let operands = Operands {
            reads: &reads,
            writes: &writes,
            workspace: at(inputs + outputs),
            workspace_bytes: call.call.workspace,
        };
        let prepared = call.prepared.as_ref().map_err(ToString::to_string)?;
        let mut times = Vec::new();
        for (launch, prepared) in call.call.launches.iter().zip(prepared) {
            // SAFETY: the operands have the sizes of the node's.
            let run = || unsafe { self.run_launch(launch, prepared, &operands, call.fault) };
            run()?;
            self.stream.finish().map_err(words)?;
            let start = Instant::now();
            (0..TIMED).try_for_each(|_| run())?;
            self.stream.finish().map_err(words)?;
            times.push((launch.to_string(), start.elapsed() / TIMED));
        }
        Ok(times)
    }
}

/// A node's launches, ready to be queued.
pub(crate) struct CudaCall {
    call: Call,
    /// One for each launch, or why there are none.
    prepared: Result<Vec<Prepared>, CudaError>,
    /// Where its indices out of range are noted.
    fault: Option<Address>,
}

enum Prepared {
    Kernel(Arc<Module>),
    Product(Box<PreparedProduct>),
}

impl Device for CudaDevice {
    type Call = CudaCall;
    type Memory = DeviceArena;

    fn map(&self, bytes: usize) -> Result<DeviceArena, String> {
        let memory = DeviceMemory::new(&self.context, bytes).map_err(words)?;
        let arena = DeviceArena { memory, stream: self.stream.clone(), faults: self.faults.clone() };
        // SAFETY: nobody knows the memory yet.
        unsafe { arena.fill(0, bytes, 0)? };
        // A kernel that failed before is not this memory's error: whoever reads next is told.
        self.stream.finish().map_err(words)?;
        Ok(arena)
    }

    fn find(&self, query: &KernelQuery<'_>) -> Option<CudaCall> {
        let call = find(query)?.in_tf32(self.tf32.load(Ordering::Relaxed));
        let prepared = self.prepare(&call);
        let fault = call.fault.map(|fault| self.faults.word(query.op.name(), fault));
        Some(CudaCall { call, prepared, fault })
    }

    fn joins<'c>(&self, call: &'c CudaCall) -> Option<&'c str> {
        joins(&call.call)
    }

    fn join(&self, calls: &[(&CudaCall, [usize; 2])]) -> Option<CudaCall> {
        let calls: Vec<_> = calls.iter().map(|&(call, operands)| (&call.call, operands)).collect();
        let call = join(&calls)?;
        // What cannot be compiled runs one by one.
        let prepared = self.prepare(&call).ok()?;
        Some(CudaCall { call, prepared: Ok(prepared), fault: None })
    }

    fn workspace_bytes(&self, call: &CudaCall) -> usize {
        call.call.workspace
    }

    unsafe fn run(&self, call: &CudaCall, operands: &Operands<'_>) -> Result<(), String> {
        let prepared = call.prepared.as_ref().map_err(ToString::to_string)?;
        for (launch, prepared) in call.call.launches.iter().zip(prepared) {
            // SAFETY: the caller's promise is passed on.
            unsafe { self.run_launch(launch, prepared, operands, call.fault)? };
        }
        Ok(())
    }

    fn record(&self, queue: &mut dyn FnMut() -> Result<(), String>) -> Option<Box<dyn Recording>> {
        capture(&self.stream, &self.graph_bytes, queue)
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), String> {
        let (from, to) = (from as Address, to as Address);
        if from == to {
            return Ok(());
        }
        if from.abs_diff(to) < bytes as u64 {
            return Err("a copy between ranges that overlap".into());
        }
        // SAFETY: apart, and inside the memory by the caller's promise.
        unsafe { self.stream.copy(to, from, bytes) }.map_err(words)
    }

    unsafe fn copy_in(&self, memory: &DeviceArena, offset: usize, from: &[u8]) -> Result<(), String> {
        if from.is_empty() {
            return Ok(());
        }
        let to = memory.at(offset, from.len()) as Address;
        // SAFETY: inside the arena, and nothing else uses it, by the caller's promise.
        unsafe { self.staging.copy_in(&self.stream, to, from) }.map_err(words)
    }

    fn input_lane(&self) -> Result<Option<Box<dyn InputLane>>, String> {
        Ok(Some(Box::new(StagedLane::new(&self.staging, &self.stream).map_err(words)?)))
    }

    fn is_running(&self) -> bool {
        self.stream.is_running()
    }

    fn finish(&self) -> Result<(), String> {
        self.stream.finish().map_err(words)?;
        self.faults.check(&self.stream)
    }

    fn lost(&self) -> Option<String> {
        // A library's function fails with words of its own; the stream tells the driver's.
        let _ = self.stream.finish();
        self.context.lost().map(ToString::to_string)
    }

    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Kernels may be queued whose results nobody read: their code is unloaded after them.
        let _ = self.stream.finish();
    }
}

impl CudaDevice {
    /// Queues a launch.
    ///
    /// # Safety
    /// As for [`Device::run`], of the call that the launch is of.
    unsafe fn run_launch(
        &self,
        launch: &Launch,
        prepared: &Prepared,
        operands: &Operands<'_>,
        fault: Option<Address>,
    ) -> Result<(), String> {
        let address = |pointer: Pointer| address(pointer, operands, fault);
        match (launch, prepared) {
            (Launch::Kernel(kernel), Prepared::Kernel(module)) => {
                // SAFETY: the caller's promise: the operands are those of the node that the call was found for.
                unsafe { self.launch(module.function, kernel, &address) }
            }
            (Launch::Product(product), Prepared::Product(prepared)) => {
                let matrices = [&product.a, &product.b, &product.c].map(|matrix| address(matrix.start));
                // SAFETY: as above.
                unsafe { prepared.run(&self.stream, matrices, product.bias.map(address)) }.map_err(words)
            }
            (Launch::Kernel(_), Prepared::Product(_)) | (Launch::Product(_), Prepared::Kernel(_)) => {
                Err("a launch was prepared as another".into())
            }
        }
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// The addresses are valid for what the kernel does.
    pub unsafe fn launch(
        &self,
        function: Handle,
        kernel: &Kernel,
        address: &dyn Fn(Pointer) -> Address,
    ) -> Result<(), String> {
        if kernel.table {
            // SAFETY: the caller's promise is passed on.
            return unsafe { self.launch_with::<TABLE_WORDS>(function, kernel, address) };
        }
        // SAFETY: as above.
        unsafe { self.launch_with::<MOST_PARAMETERS>(function, kernel, address) }
    }

    /// Queues a kernel whose parameters are so many words at most.
    ///
    /// # Safety
    /// As for [`CudaDevice::launch`].
    unsafe fn launch_with<const WORDS: usize>(
        &self,
        function: Handle,
        kernel: &Kernel,
        address: &dyn Fn(Pointer) -> Address,
    ) -> Result<(), String> {
        let (mut values, count) = ([0_u64; WORDS], kernel.parameters.len());
        if count > WORDS {
            return Err(format!("a kernel of {count} parameters"));
        }
        for (value, parameter) in values.iter_mut().zip(&kernel.parameters) {
            *value = match *parameter {
                Parameter::Pointer(pointer) => address(pointer),
                Parameter::Integer(number) => number as u64,
                // In the first four bytes: devices and their hosts are little-endian.
                Parameter::Float(number) => u64::from(number.to_bits()),
            };
        }
        let start = values.as_mut_ptr();
        let at = |word: usize| start.wrapping_add(word).cast::<c_void>();
        let mut places = [std::ptr::null_mut(); MOST_PARAMETERS];
        let places = if kernel.table {
            places[..2].copy_from_slice(&[at(0), at(count.saturating_sub(1))]);
            &mut places[..2]
        } else {
            places.iter_mut().take(count).enumerate().for_each(|(word, place)| *place = at(word));
            &mut places[..count]
        };
        // SAFETY: eight bytes for each parameter, as many as a table may have for that, and the caller's promise.
        unsafe { self.stream.launch(function, kernel.blocks, kernel.threads, places) }.map_err(words)
    }
}

/// Where a pointer points to.
fn address(pointer: Pointer, operands: &Operands<'_>, fault: Option<Address>) -> Address {
    let start = match pointer.operand {
        Operand::Read(i) => operands.reads[i] as Address,
        Operand::Write(i) => operands.writes[i] as Address,
        Operand::Workspace => operands.workspace as Address,
        Operand::Fault => fault.unwrap_or(0),
    };
    start + pointer.offset as Address
}

/// The arena on a device.
pub(crate) struct DeviceArena {
    memory: DeviceMemory,
    stream: Arc<Stream>,
    faults: Arc<Faults>,
}

impl Memory for DeviceArena {
    fn bytes(&self) -> usize {
        self.memory.bytes
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let inside = offset <= self.memory.bytes && bytes <= self.memory.bytes - offset;
        assert!(inside, "{offset} + {bytes} is outside the arena");
        (self.memory.start as usize + offset) as *mut u8
    }

    unsafe fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), String> {
        if into.is_empty() {
            return Ok(());
        }
        let from = self.at(offset, into.len()) as Address;
        // SAFETY: inside the arena, and nothing writes to it, by the caller's promise; the copy is done before `into` is used.
        unsafe { self.stream.copy_out(into.as_mut_ptr(), from, into.len()) }.map_err(words)?;
        self.stream.finish().map_err(words)?;
        self.faults.check(&self.stream)
    }

    unsafe fn write(&self, offset: usize, from: &[u8]) -> Result<(), String> {
        if from.is_empty() {
            return Ok(());
        }
        let to = self.at(offset, from.len()) as Address;
        // SAFETY: inside the arena, and nothing else uses it, by the caller's promise. The bytes are read before this returns,
        // because they are not in page-locked memory.
        unsafe { self.stream.copy_in(to, from.as_ptr(), from.len()) }.map_err(words)
    }

    unsafe fn fill(&self, offset: usize, bytes: usize, byte: u8) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        let start = self.at(offset, bytes) as Address;
        // SAFETY: inside the arena, and nothing else uses it, by the caller's promise.
        unsafe { self.stream.fill(start, bytes, byte) }.map_err(words)
    }
}

/// An error in words.
pub(crate) fn words(error: CudaError) -> String {
    error.to_string()
}
