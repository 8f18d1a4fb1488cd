//! NVRTC: compiles kernels to machine code at run time, once; a folder keeps what was compiled.

use crate::driver::library::library;
use crate::driver::{CudaError, Handle};
use plimsoll_tensor::random::fnv1a;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

library! {
    /// The compiler.
    NvrtcApi {
        nvrtcVersion(*mut c_int, *mut c_int) -> c_int;
        nvrtcGetErrorString(c_int) -> *const c_char;
        nvrtcCreateProgram(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
        nvrtcDestroyProgram(*mut Handle) -> c_int;
        nvrtcCompileProgram(Handle, c_int, *const *const c_char) -> c_int;
        nvrtcGetProgramLogSize(Handle, *mut usize) -> c_int;
        nvrtcGetProgramLog(Handle, *mut c_char) -> c_int;
        nvrtcGetCUBINSize(Handle, *mut usize) -> c_int;
        nvrtcGetCUBIN(Handle, *mut c_char) -> c_int;
    }
}

/// What every kernel is compiled with: products and sums are rounded apart, division and square root are exact, subnormal
/// numbers are kept. So the bits are those of the source.
const OPTIONS: [&str; 5] =
    ["--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false", "--std=c++17"];

/// Bytes of a compiled kernel at most, in a file that is read.
const MOST_BYTES: u64 = 16 << 20;

/// The compiler for an architecture.
pub(crate) struct Compiler {
    api: NvrtcApi,
    version: (i32, i32),
    options: Vec<CString>,
    /// Where compiled kernels are kept.
    cache: Option<PathBuf>,
}

impl Compiler {
    /// The compiler of this machine, for a compute capability. Compiled kernels are kept in a folder, if one is given.
    pub fn new(capability: (u32, u32), cache: Option<PathBuf>) -> Result<Self, CudaError> {
        let what = "the CUDA compiler NVRTC";
        let names =
            ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll"];
        let api = NvrtcApi::load(what, &names)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the pointers are valid.
        let code = unsafe { (api.nvrtcVersion)(&mut major, &mut minor) };
        let architecture = format!("--gpu-architecture=sm_{}{}", capability.0, capability.1);
        let options = OPTIONS.iter().copied().chain([architecture.as_str()]);
        let options = options.map(|option| CString::new(option).expect("an option without a zero")).collect();
        let compiler = Self { api, version: (major, minor), options, cache };
        compiler.check("nvrtcVersion", code)?;
        Ok(compiler)
    }

    /// Its version, like `13.0`.
    pub fn version_text(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// Machine code for a source: from the folder, if it is there and whole, else compiled.
    pub fn compile(&self, source: &str) -> Result<Vec<u8>, CudaError> {
        let key = self.key(source);
        let file = self.cache.as_ref().map(|folder| folder.join(file_name(&key)));
        if let Some(code) = file.as_deref().and_then(|file| read(file, &key)) {
            return Ok(code);
        }
        let code = self.compile_now(source)?;
        if let Some(file) = &file {
            // A folder that cannot be written only costs time.
            let _ = write(file, &key, &code);
        }
        Ok(code)
    }

    /// All that machine code depends on.
    fn key(&self, source: &str) -> String {
        let mut key = format!("NVRTC {}", self.version_text());
        for option in &self.options {
            key.push(' ');
            key.push_str(&option.to_string_lossy());
        }
        key.push('\n');
        key.push_str(source);
        key
    }

    fn compile_now(&self, source: &str) -> Result<Vec<u8>, CudaError> {
        let source = CString::new(source).map_err(|e| CudaError::Compile(e.to_string()))?;
        let mut program = Program { compiler: self, handle: std::ptr::null_mut() };
        let none = std::ptr::null();
        // SAFETY: the pointers are valid; no headers are given.
        let code = unsafe {
            (self.api.nvrtcCreateProgram)(
                &mut program.handle,
                source.as_ptr(),
                c"kernel.cu".as_ptr(),
                0,
                none,
                none,
            )
        };
        self.check("nvrtcCreateProgram", code)?;
        let options: Vec<*const c_char> = self.options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the options are valid for the call.
        let code = unsafe {
            (self.api.nvrtcCompileProgram)(program.handle, options.len() as c_int, options.as_ptr())
        };
        if code != 0 {
            return Err(CudaError::Compile(program.log()));
        }
        let mut bytes = 0;
        // SAFETY: the pointer is valid.
        self.check("nvrtcGetCUBINSize", unsafe { (self.api.nvrtcGetCUBINSize)(program.handle, &mut bytes) })?;
        let mut code = vec![0_u8; bytes];
        // SAFETY: the buffer has the size that was asked for.
        let got = unsafe { (self.api.nvrtcGetCUBIN)(program.handle, code.as_mut_ptr().cast()) };
        self.check("nvrtcGetCUBIN", got)?;
        Ok(code)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a static text for every code.
        let error = unsafe { CStr::from_ptr((self.api.nvrtcGetErrorString)(code)) };
        Err(CudaError::Call { call, error: error.to_string_lossy().into_owned() })
    }
}

/// A source that is being compiled.
struct Program<'a> {
    compiler: &'a Compiler,
    handle: Handle,
}

impl Program<'_> {
    /// What the compiler says.
    fn log(&self) -> String {
        let api = &self.compiler.api;
        let mut bytes = 0;
        // SAFETY: the pointer is valid; the buffer has the size that was asked for.
        unsafe {
            (api.nvrtcGetProgramLogSize)(self.handle, &mut bytes);
            let mut log = vec![0_u8; bytes];
            (api.nvrtcGetProgramLog)(self.handle, log.as_mut_ptr().cast());
            String::from_utf8_lossy(&log).trim_end_matches('\0').to_string()
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created before; nothing can be done about an error.
        let _ = unsafe { (self.compiler.api.nvrtcDestroyProgram)(&mut self.handle) };
    }
}

fn file_name(key: &str) -> String {
    format!("{:016x}.cubin", fnv1a(key))
}

/// A file: the key, then the code's checksum and the code.
fn contents(key: &str, code: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len() + code.len() + 17);
    bytes.extend_from_slice(key.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&checksum(code).to_le_bytes());
    bytes.extend_from_slice(code);
    bytes
}

/// The code in a file, if the file is whole and of this key.
fn read(file: &Path, key: &str) -> Option<Vec<u8>> {
    if fs::metadata(file).ok()?.len() > MOST_BYTES {
        return None;
    }
    let bytes = fs::read(file).ok()?;
    let rest = bytes.strip_prefix(key.as_bytes())?.strip_prefix(&[0])?;
    let (sum, code) = rest.split_at_checked(8)?;
    (checksum(code).to_le_bytes() == sum).then(|| code.to_vec())
}

/// Writes a file under another name, then renames it: programs that share the folder see it whole or not at all.
fn write(file: &Path, key: &str, code: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let begun = file.with_extension(format!("begun-{}-{number}", std::process::id()));
    fs::write(&begun, contents(key, code))?;
    fs::rename(&begun, file).inspect_err(|_| drop(fs::remove_file(&begun)))
}

/// FNV-1a over bytes.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_or_other_file_is_a_miss() {
        let folder = std::env::temp_dir().join(format!("plimsoll-kernels-{}", std::process::id()));
        let file = folder.join(file_name("key"));
        write(&file, "key", b"machine code").unwrap();
        assert_eq!(read(&file, "key").as_deref(), Some(&b"machine code"[..]));
        assert_eq!(read(&file, "other"), None);
        let whole = fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            fs::write(&file, &whole[..cut]).unwrap();
            assert_eq!(read(&file, "key"), None, "cut to {cut} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&file, &damaged).unwrap();
            assert_eq!(read(&file, "key"), None, "byte {at} changed");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
