//! What each function of the libraries does.

use super::{Code, Machine, NAME, OTHER, OUT_OF_MEMORY, TOTAL_BYTES};
use crate::program::{Call, Kind, Work};
use std::ffi::{CStr, c_char};

/// Codes of the driver.
const OK: u64 = 0;
const NOT_READY: u64 = 600;

/// A launch's attribute: the kernel may start while the one before it in the stream ends.
const PROGRAMMATIC: i32 = 6;
/// What a kernel's code has to have then.
const WAITS_BY_ITSELF: &str = "griddepcontrol.wait";
/// Words of the parameter that is a table.
const TABLE_WORDS: usize = 511;

/// The arguments of a call.
#[derive(Clone, Copy)]
pub struct Arguments(pub *const u64);

impl Arguments {
    /// A number.
    unsafe fn number(self, at: usize) -> u64 {
        // SAFETY: the caller's promise: the function has so many arguments.
        unsafe { *self.0.add(at) }
    }

    /// A number of 32 bits.
    unsafe fn int(self, at: usize) -> i32 {
        // SAFETY: as above.
        unsafe { self.number(at) as u32 as i32 }
    }

    /// Writes to where an argument points.
    unsafe fn set<T>(self, at: usize, value: T) {
        // SAFETY: the caller's promise: the argument is an address of such a value.
        unsafe { (self.number(at) as *mut T).write_unaligned(value) };
    }
}

/// How a kernel is launched, as the driver's header has it.
#[repr(C)]
struct LaunchConfig {
    blocks: [u32; 3],
    threads: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    attributes: *const [u64; 9],
    attribute_count: u32,
}

impl Machine {
    /// # Safety
    /// The arguments are those of the function.
    pub unsafe fn answer(&mut self, function: &str, a: Arguments) -> u64 {
        // SAFETY: the caller's promise is passed on.
        let answered = unsafe {
            if function.starts_with("cublas") {
                self.product(function, a)
            } else if function.starts_with("nvrtc") {
                self.compile(function, a)
            } else if function.starts_with("nvml") {
                self.management(function, a)
            } else {
                self.device(function, a).or_else(|| self.driver(function, a))
            }
        };
        answered.unwrap_or(OK)
    }

    /// What describes the GPU.
    unsafe fn device(&mut self, function: &str, a: Arguments) -> Option<u64> {
        // SAFETY: as for `answer`.
        unsafe {
            match function {
                "cuDriverGetVersion" => a.set(0, self.driver_version),
                "cuGetErrorName" => a.set(1, error(a.int(0)).0.as_ptr()),
                "cuGetErrorString" => a.set(1, error(a.int(0)).1.as_ptr()),
                "cuDeviceGetCount" => a.set(0, 1_i32),
                "cuDeviceGet" => a.set(0, 0_i32),
                "cuDeviceGetName" => {
                    let name = a.number(0) as *mut c_char;
                    name.copy_from_nonoverlapping(NAME.as_ptr(), NAME.to_bytes_with_nul().len());
                }
                "cuDeviceGetUuid_v2" => a.set(0, [7_u8; 16]),
                "cuDeviceTotalMem_v2" => a.set(0, TOTAL_BYTES),
                // A small one of compute capability 9.0, whose kernels take much longer than transfers.
                "cuDeviceGetAttribute" => a.set(
                    0,
                    match a.int(1) {
                        16 => 2_i32,
                        13 => 100_000,
                        36 => 10_000,
                        37 => 64,
                        75 => 9,
                        _ => 0,
                    },
                ),
                "cuDevicePrimaryCtxRetain" => {
                    self.context = true;
                    a.set(0, self.handle());
                }
                "cuDevicePrimaryCtxRelease_v2" => self.context = false,
                "cuMemGetInfo_v2" => {
                    a.set(0, TOTAL_BYTES - self.used_bytes());
                    a.set(1, TOTAL_BYTES);
                }
                "cuModuleLoadData" => {
                    let source = CStr::from_ptr(a.number(1) as *const c_char).to_string_lossy();
                    let (module, code) = (self.handle(), Code::of(&source));
                    self.modules.insert(module, code);
                    a.set(0, module);
                }
                "cuModuleGetFunction" => a.set(0, a.number(1)),
                "cuFuncGetAttribute" => a.set(0, 0_i32),
                _ => return None,
            }
        }
        Some(OK)
    }

    /// What keeps memory, and what is done in an order.
    unsafe fn driver(&mut self, function: &str, a: Arguments) -> Option<u64> {
        // SAFETY: as for `answer`.
        unsafe {
            match function {
                "cuMemAlloc_v2" | "cuMemHostAlloc" => {
                    let kind = if function == "cuMemAlloc_v2" { Kind::Device } else { Kind::PageLocked };
                    match self.allocate(kind, a.number(1)) {
                        Some(start) => a.set(0, start),
                        None => return Some(OUT_OF_MEMORY),
                    }
                }
                "cuMemFree_v2" | "cuMemFreeHost" => self.free(a.number(0)),
                "cuMemcpyHtoDAsync_v2" | "cuMemcpyDtoHAsync_v2" | "cuMemcpyDtoDAsync_v2" => {
                    let [to, from, bytes, stream] = [0, 1, 2, 3].map(|i| a.number(i));
                    let kinds = [from, to].map(|address| self.kind(address));
                    self.queue(stream, Work::Copy { from, to, bytes, kinds });
                }
                "cuMemsetD8Async" => {
                    let (to, byte, bytes) = (a.number(0), a.number(1) as u8, a.number(2));
                    self.queue(a.number(3), Work::Fill { to, bytes, byte });
                }
                "cuStreamCreate" | "cuEventCreate" => a.set(0, self.handle()),
                "cuStreamSynchronize" => self.log(Call::FinishStream(a.number(0))),
                // Nothing that was queued has ended before somebody waited for it.
                "cuStreamQuery" => return Some(NOT_READY),
                "cuStreamWaitEvent" => self.log(Call::Wait { stream: a.number(0), event: a.number(1) }),
                "cuEventRecord" => self.log(Call::Record { event: a.number(0), stream: a.number(1) }),
                "cuEventSynchronize" => self.log(Call::FinishEvent(a.number(0))),
                "cuStreamBeginCapture_v2" => self.capturing = Some((a.number(0), Vec::new())),
                "cuStreamEndCapture" => {
                    let (captured, works) = self.capturing.take().expect("a stream that is captured");
                    assert_eq!(captured, a.number(0));
                    let graph = self.handle();
                    self.graphs.insert(graph, works);
                    a.set(1, graph);
                }
                "cuGraphInstantiateWithFlags" => {
                    let (graph, works) = (self.handle(), self.graphs[&a.number(1)].clone());
                    self.graphs.insert(graph, works);
                    a.set(0, graph);
                }
                "cuGraphLaunch" => {
                    self.launched_graphs += 1;
                    for work in self.graphs[&a.number(0)].clone() {
                        self.queue(a.number(1), work);
                    }
                }
                "cuModuleUnload" => self.log(Call::Unload(a.number(0))),
                "cuLaunchKernelEx" => {
                    let config = &*(a.number(0) as *const LaunchConfig);
                    let (module, parameters) = (a.number(1), a.number(2) as *const *const u64);
                    let attributes = match config.attribute_count {
                        0 => &[],
                        count => std::slice::from_raw_parts(config.attributes, count as usize),
                    };
                    let code = &self.modules[&module];
                    // The stream does not wait for the kernel before this one.
                    let overlaps = attributes.iter().any(|words| words[0] as u32 as i32 == PROGRAMMATIC);
                    assert!(code.waits || !overlaps, "a kernel that may start early and does not wait");
                    let pointers = match &code.pointers {
                        Some(places) => places.iter().map(|&at| **parameters.add(at)).collect(),
                        None => {
                            let words = std::slice::from_raw_parts(*parameters, TABLE_WORDS);
                            words.iter().copied().filter(|&word| self.kind(word).is_some()).collect()
                        }
                    };
                    self.queue(config.stream, Work::Kernel { module, blocks: config.blocks, pointers });
                }
                _ => return None,
            }
        }
        Some(OK)
    }

    /// Machine code is the source.
    unsafe fn compile(&mut self, function: &str, a: Arguments) -> Option<u64> {
        // SAFETY: as for `answer`.
        unsafe {
            match function {
                "nvrtcVersion" => {
                    a.set(0, 13_i32);
                    a.set(1, 0_i32);
                }
                "nvrtcGetErrorString" => return Some(c"an error of the mock".as_ptr() as u64),
                "nvrtcCreateProgram" => {
                    let source = CStr::from_ptr(a.number(1) as *const c_char).to_string_lossy();
                    let program = self.handle();
                    self.sources.insert(program, source.into_owned());
                    a.set(0, program);
                }
                "nvrtcGetCUBINSize" => a.set(1, self.sources[&a.number(0)].len() as u64 + 1),
                "nvrtcGetCUBIN" => {
                    let (source, code) = (&self.sources[&a.number(0)], a.number(1) as *mut u8);
                    code.copy_from_nonoverlapping(source.as_ptr(), source.len());
                    code.add(source.len()).write(0);
                }
                "nvrtcGetProgramLogSize" => a.set(1, 0_u64),
                _ => return None,
            }
        }
        Some(OK)
    }

    /// The library of products, which has one algorithm.
    unsafe fn product(&mut self, function: &str, a: Arguments) -> Option<u64> {
        // Attributes of a description, by the library's numbers.
        const EPILOGUE: i32 = 7;
        const BIAS_POINTER: i32 = 8;
        // SAFETY: as for `answer`.
        unsafe {
            match function {
                "cublasLtGetVersion" => return Some(130_100),
                "cublasLtCreate"
                | "cublasLtMatmulDescCreate"
                | "cublasLtMatrixLayoutCreate"
                | "cublasLtMatmulPreferenceCreate" => a.set(0, self.handle()),
                "cublasLtMatmulDescSetAttribute" if [EPILOGUE, BIAS_POINTER].contains(&a.int(1)) => {
                    let bias = if a.int(1) == BIAS_POINTER { *(a.number(2) as *const u64) } else { 0 };
                    self.biases.insert(a.number(0), bias);
                }
                "cublasLtMatmulAlgoGetHeuristic" => a.set(9, 1_i32),
                "cublasLtMatmul" => {
                    // The library stores columns: its first factor is our second.
                    let mut pointers = vec![a.number(5), a.number(3), a.number(8)];
                    pointers.extend(self.biases.get(&a.number(1)));
                    let workspace = a.number(13)..a.number(13) + a.number(14);
                    self.queue(a.number(15), Work::Product { pointers, workspace });
                }
                _ => return None,
            }
        }
        Some(OK)
    }

    /// The library that tells who holds the memory.
    unsafe fn management(&mut self, function: &str, a: Arguments) -> Option<u64> {
        // SAFETY: as for `answer`.
        unsafe {
            match function {
                "nvmlDeviceGetHandleByUUID" => a.set(1, self.handle()),
                "nvmlDeviceGetMemoryInfo" => {
                    let used = self.used_bytes();
                    a.set(1, [TOTAL_BYTES, TOTAL_BYTES - used, used]);
                }
                "nvmlDeviceGetComputeRunningProcesses_v3" => {
                    a.set(1, 1_u32);
                    a.set(2, [u64::from(OTHER.0), OTHER.1, 0]);
                }
                _ => return None,
            }
        }
        Some(OK)
    }
}

/// An error's name and words.
fn error(code: i32) -> (&'static CStr, &'static CStr) {
    match code {
        2 => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        100 => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        803 => (
            c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            c"system has unsupported display driver / cuda driver combination",
        ),
        _ => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    }
}

impl Code {
    fn of(source: &str) -> Self {
        let head = source.rsplit_once("__global__").map_or("", |(_, rest)| rest);
        let parameters = head.split_once("kernel(").map_or("", |(_, rest)| rest);
        let parameters = parameters.split_once(')').map_or("", |(all, _)| all);
        let is_table = parameters.contains("Table table");
        let pointers = parameters.split(',').enumerate().filter(|(_, one)| one.contains('*'));
        let pointers = (!is_table).then(|| pointers.map(|(at, _)| at).collect());
        Self { pointers, waits: source.contains(WAITS_BY_ITSELF) }
    }
}
