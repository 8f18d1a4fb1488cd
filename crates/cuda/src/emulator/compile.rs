//! Kernels as shared libraries of the host.

use crate::PRELUDE;
use libloading::Library;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::ffi::{OsString, c_int, c_uint, c_void};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const SHIM: &str = include_str!("shim.h");
const LAUNCH: &str = include_str!("launch.h");
const FIBERS: &str = include_str!("fibers.cpp");

/// A product and a sum stay two roundings, as on the device.
const FLAGS: [&str; 8] = [
    "-std=c++17",
    "-O1",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-w",
    // Compilers of some systems check by default that a jump leads up the stack; fibers jump to other stacks.
    "-U_FORTIFY_SOURCE",
];

type RunBlock = unsafe extern "C" fn(c_uint, extern "C" fn(c_uint)) -> bool;
type Meet = unsafe extern "C" fn();
type LaunchKernel =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *const c_uint, c_uint, RunBlock, Meet) -> c_int;

/// A kernel that can run on the host.
pub(super) struct HostKernel {
    launch: LaunchKernel,
    fibers: Arc<Fibers>,
    /// Keeps the function in memory.
    _library: Library,
}

/// What runs the threads of a block.
struct Fibers {
    run_block: RunBlock,
    meet: Meet,
    _library: Library,
}

impl HostKernel {
    /// Runs all blocks.
    ///
    /// # Safety
    /// As many parameters as the kernel has, each pointing to a value of its type, with which the kernel may be run.
    pub unsafe fn run(
        &self,
        parameters: &mut [*mut c_void],
        blocks: [u32; 3],
        threads: u32,
    ) -> Result<(), String> {
        let Fibers { run_block, meet, .. } = *self.fibers;
        let count = parameters.len() as c_int;
        // SAFETY: the caller's promise; the library checks the number of parameters.
        let outcome = unsafe {
            (self.launch)(parameters.as_mut_ptr(), count, blocks.as_ptr(), threads, run_block, meet)
        };
        match outcome {
            0 => Ok(()),
            1 => Err(format!("the kernel does not have {count} parameters")),
            _ => Err("the threads of a block do not meet at a barrier, or are too many".into()),
        }
    }
}

/// The kernel of a source. Sources are compiled once for all processes that share a folder of programs.
pub(super) fn kernel(source: &str) -> Result<Arc<HostKernel>, String> {
    type Slot = Arc<OnceLock<Result<Arc<HostKernel>, String>>>;
    static KERNELS: OnceLock<Mutex<HashMap<String, Slot>>> = OnceLock::new();
    let kernels = KERNELS.get_or_init(Mutex::default);
    let slot = {
        let mut kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
        kernels.entry(source.to_string()).or_default().clone()
    };
    slot.get_or_init(|| load_kernel(source).map(Arc::new)).clone()
}

fn load_kernel(source: &str) -> Result<HostKernel, String> {
    let fibers = fibers()?;
    let library = library(&[SHIM, PRELUDE, source, LAUNCH].join("\n"))?;
    // SAFETY: the function of that name in `launch.h` has this type.
    let launch = unsafe { *library.get::<LaunchKernel>(c"launch_kernel").map_err(|e| e.to_string())? };
    Ok(HostKernel { launch, fibers, _library: library })
}

fn fibers() -> Result<Arc<Fibers>, String> {
    static FOUND: OnceLock<Result<Arc<Fibers>, String>> = OnceLock::new();
    let load = || {
        let library = library(FIBERS)?;
        // SAFETY: the functions of these names in `fibers.cpp` have these types.
        let (run_block, meet) = unsafe {
            let run_block = library.get::<RunBlock>(c"run_block").map_err(|e| e.to_string())?;
            (*run_block, *library.get::<Meet>(c"meet_threads").map_err(|e| e.to_string())?)
        };
        Ok(Arc::new(Fibers { run_block, meet, _library: library }))
    };
    FOUND.get_or_init(load).clone()
}

/// The shared library of a source, from the cache or compiled.
fn library(source: &str) -> Result<Library, String> {
    let mut hasher = DefaultHasher::new();
    (compiler(), FLAGS, source).hash(&mut hasher);
    let folder = folder()?;
    let path = folder.join(format!("{:016x}.so", hasher.finish()));
    if !path.exists() {
        compile(source, &folder, &path)?;
    }
    // SAFETY: the library was made from our own source; loading it runs no more than its constructors.
    unsafe { Library::new(&path) }.map_err(|e| format!("{}: {e}", path.display()))
}

/// Beside the running program, so in the target folder of a build: only who may replace the program may write there.
fn folder() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("the folder of this program: {e}"))?;
    let folder = program.with_file_name("emulated-kernels");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// Compiles to a name of its own and renames: other threads and processes see a whole library or none.
fn compile(source: &str, folder: &Path, to: &Path) -> Result<(), String> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let (text, built) = (folder.join(format!("{name}.cpp")), folder.join(format!("{name}.so")));
    std::fs::write(&text, source).map_err(|e| format!("{}: {e}", text.display()))?;
    let compiler = compiler();
    let output = Command::new(&compiler).args(FLAGS).arg(&text).arg("-o").arg(&built).output();
    // Left behind if it cannot be removed.
    let _ = std::fs::remove_file(&text);
    let output = output.map_err(|e| format!("{}: {e}", compiler.display()))?;
    if !output.status.success() {
        return Err(format!("{}\n{source}", String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::rename(&built, to).map_err(|e| format!("{}: {e}", to.display()))
}

/// The C++ compiler: `CXX`, or `c++`.
fn compiler() -> OsString {
    std::env::var_os("CXX").unwrap_or_else(|| "c++".into())
}

/// Whether there is a compiler; its first answer is kept.
pub(super) fn check_compiler() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let ask = || {
        let compiler = compiler();
        let answer = Command::new(&compiler).arg("--version").output();
        answer.map(|_| ()).map_err(|e| format!("{}: {e}", compiler.display()))
    };
    FOUND.get_or_init(ask).clone()
}
