//! NVRTC: compiles kernels to machine code at run time, once.

use crate::driver::library::library;
use crate::driver::{CudaError, Handle};
use crate::kept::Kept;
use std::ffi::{CStr, CString, c_char, c_int};

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

/// The compiler for an architecture.
pub(crate) struct Compiler {
    api: NvrtcApi,
    version: (i32, i32),
    options: Vec<CString>,
    /// Where compiled kernels are kept.
    kept: Kept,
}

impl Compiler {
    /// The compiler of this machine, for a compute capability.
    pub fn new(capability: (u32, u32), kept: Kept) -> Result<Self, CudaError> {
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
        let compiler = Self { api, version: (major, minor), options, kept };
        compiler.check("nvrtcVersion", code)?;
        Ok(compiler)
    }

    /// Its version, like `13.0`.
    pub fn version_text(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// The first number of its version.
    pub fn generation(&self) -> u32 {
        self.version.0.unsigned_abs()
    }

    /// Machine code for a source: what was kept, if it is there and whole, else compiled.
    pub fn compile(&self, source: &str) -> Result<Vec<u8>, CudaError> {
        let key = self.key(source);
        if let Some(code) = self.kept.get("cubin", &key) {
            return Ok(code);
        }
        let code = self.compile_now(source)?;
        self.kept.put("cubin", &key, &code);
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
