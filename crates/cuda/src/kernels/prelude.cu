// Element types and their conversions. No headers: kernels are compiled where no toolkit is installed. What differs between a
// device and the host, where tests run the kernels, is in the macros that the host's shim defines before this.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
