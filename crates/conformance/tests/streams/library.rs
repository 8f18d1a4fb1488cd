//! The libraries that a GPU is used through, as shared libraries of our own: built by the host's compiler under the names that the
//! executor loads, so that the loader takes these for them. Each function hands its arguments, as words, to one function of this program.

use libloading::Library;
use plimsoll_testing::Scratch;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// What answers calls: which function it is, and its arguments.
pub type Answer = extern "C" fn(function: usize, arguments: *const u64) -> u64;

/// A library: its name, and its functions with their numbers of arguments.
pub type Functions = (&'static str, &'static [(&'static str, usize)]);

pub const DRIVER: Functions = (
    "libcuda.so.1",
    &[
        ("cuInit", 1),
        ("cuDriverGetVersion", 1),
        ("cuGetErrorName", 2),
        ("cuGetErrorString", 2),
        ("cuDeviceGetCount", 1),
        ("cuDeviceGet", 2),
        ("cuDeviceGetName", 3),
        ("cuDeviceGetUuid_v2", 2),
        ("cuDeviceGetAttribute", 3),
        ("cuDeviceTotalMem_v2", 2),
        ("cuDevicePrimaryCtxRetain", 2),
        ("cuDevicePrimaryCtxRelease_v2", 1),
        ("cuCtxSetCurrent", 1),
        ("cuCtxSetLimit", 2),
        ("cuMemGetInfo_v2", 2),
        ("cuMemAlloc_v2", 2),
        ("cuMemFree_v2", 1),
        ("cuMemHostAlloc", 3),
        ("cuMemFreeHost", 1),
        ("cuMemcpyHtoDAsync_v2", 4),
        ("cuMemcpyDtoHAsync_v2", 4),
        ("cuMemcpyDtoDAsync_v2", 4),
        ("cuMemsetD8Async", 4),
        ("cuStreamCreate", 2),
        ("cuStreamDestroy_v2", 1),
        ("cuStreamSynchronize", 1),
        ("cuStreamQuery", 1),
        ("cuStreamWaitEvent", 3),
        ("cuStreamBeginCapture_v2", 2),
        ("cuStreamEndCapture", 2),
        ("cuGraphInstantiateWithFlags", 3),
        ("cuGraphUpload", 2),
        ("cuGraphLaunch", 2),
        ("cuGraphDestroy", 1),
        ("cuGraphExecDestroy", 1),
        ("cuEventCreate", 2),
        ("cuEventDestroy_v2", 1),
        ("cuEventRecord", 2),
        ("cuEventSynchronize", 1),
        ("cuModuleLoadData", 2),
        ("cuModuleUnload", 1),
        ("cuModuleGetFunction", 3),
        ("cuFuncGetAttribute", 3),
        ("cuLaunchKernelEx", 4),
    ],
);

pub const COMPILER: Functions = (
    "libnvrtc.so.13",
    &[
        ("nvrtcVersion", 2),
        ("nvrtcGetErrorString", 1),
        ("nvrtcCreateProgram", 6),
        ("nvrtcDestroyProgram", 1),
        ("nvrtcCompileProgram", 3),
        ("nvrtcGetProgramLogSize", 2),
        ("nvrtcGetProgramLog", 2),
        ("nvrtcGetCUBINSize", 2),
        ("nvrtcGetCUBIN", 2),
    ],
);

pub const PRODUCTS: Functions = (
    "libcublasLt.so.13",
    &[
        ("cublasLtCreate", 1),
        ("cublasLtDestroy", 1),
        ("cublasLtGetVersion", 0),
        ("cublasLtMatmulDescCreate", 3),
        ("cublasLtMatmulDescDestroy", 1),
        ("cublasLtMatmulDescSetAttribute", 4),
        ("cublasLtMatrixLayoutCreate", 5),
        ("cublasLtMatrixLayoutDestroy", 1),
        ("cublasLtMatrixLayoutSetAttribute", 4),
        ("cublasLtMatmulPreferenceCreate", 1),
        ("cublasLtMatmulPreferenceDestroy", 1),
        ("cublasLtMatmulPreferenceSetAttribute", 4),
        ("cublasLtMatmulAlgoGetHeuristic", 10),
        ("cublasLtMatmulAlgoCheck", 8),
        ("cublasLtMatmul", 16),
    ],
);

pub const MANAGEMENT: Functions = (
    "libnvidia-ml.so.1",
    &[
        ("nvmlInit_v2", 0),
        ("nvmlDeviceGetHandleByUUID", 2),
        ("nvmlDeviceGetMemoryInfo", 2),
        ("nvmlDeviceGetComputeRunningProcesses_v3", 3),
    ],
);

/// Loads libraries without some of their functions: from here on this process takes them for the real ones. Once in a process.
pub fn load(libraries: &[Functions], without: &[&str], answer: Answer) -> Result<(), String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            let folder = Scratch::new("mock-libraries");
            libraries.iter().try_for_each(|library| load_one(library, without, answer, &folder.0))
        })
        .clone()
}

fn load_one(
    (name, functions): &Functions,
    without: &[&str],
    answer: Answer,
    folder: &Path,
) -> Result<(), String> {
    let (source, built) = (folder.join(format!("{name}.cpp")), folder.join(name));
    let functions = functions.iter().filter(|(name, _)| !without.contains(name));
    let text: String = functions.map(|&(name, arguments)| text_of(name, arguments)).collect();
    std::fs::write(&source, format!("{HEAD}{text}}}\n")).map_err(|e| e.to_string())?;
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| OsString::from("c++"));
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-fPIC", "-w", &format!("-Wl,-soname,{name}")]);
    let output = command.arg("-o").arg(&built).arg(&source).output();
    let output = output.map_err(|e| format!("the mock needs a C++ compiler: {}: {e}", compiler.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    // SAFETY: a library of our own, whose loading runs nothing.
    let library = unsafe { Library::new(&built) }.map_err(|e| e.to_string())?;
    // SAFETY: the variable has this type, and nobody calls the library yet.
    unsafe { **library.get::<*mut Answer>(c"answer").map_err(|e| e.to_string())? = answer };
    // The loader finds it by its name for as long as it is loaded.
    std::mem::forget(library);
    Ok(())
}

const HEAD: &str = "extern \"C\" {\ntypedef unsigned long long word;\nword (*answer)(word function, const word *arguments);\n";

/// A function of so many arguments, each in a word: integers of fewer bits are in its lower ones.
fn text_of(name: &str, count: usize) -> String {
    let (number, words) = (number(name), |prefix: &str| {
        (0..count).map(|i| format!("{prefix}a{i}")).collect::<Vec<_>>().join(", ")
    });
    format!(
        "word {name}({}) {{ const word all[] = {{ {} }}; return answer({number}, all); }}\n",
        words("word "),
        if count == 0 { "0".into() } else { words("") }
    )
}

fn all() -> impl Iterator<Item = &'static str> {
    [DRIVER, COMPILER, PRODUCTS, MANAGEMENT].into_iter().flat_map(|(_, all)| all).map(|(name, _)| *name)
}

fn number(name: &str) -> usize {
    all().position(|known| known == name).expect("a function of the tables")
}

/// The function of a number.
pub fn name(number: usize) -> &'static str {
    all().nth(number).expect("a number of a function")
}
