//! IoRing, each of its functions found at run time: Windows has it since 11, and the import library
//! alone would keep this program from starting on an older one.

use super::{last, raw, wide};
use crate::{HResult, Handle, RingCalls, RingCapabilities, RingCompletion, RingHandle};
use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};
use windows_sys::Win32::Foundation::{HANDLE, HMODULE};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLUSH_DEFAULT, FILE_FLUSH_MODE, FILE_WRITE_FLAGS, FILE_WRITE_FLAGS_NONE, HIORING,
    IORING_BUFFER_INFO, IORING_BUFFER_REF, IORING_BUFFER_REF_0, IORING_CAPABILITIES, IORING_CQE,
    IORING_CREATE_FLAGS, IORING_FEATURE_UM_EMULATION, IORING_HANDLE_REF, IORING_HANDLE_REF_0,
    IORING_REF_REGISTERED, IORING_REGISTERED_BUFFER, IORING_SQE_FLAGS, IORING_VERSION,
    IOSQE_FLAGS_NONE,
};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)*) => {
        /// IoRing's functions, all of them found.
        #[derive(Clone, Copy, Debug)]
        pub struct IoRingDll {
            $(
                /// # Safety
                /// As ioringapi.h says of the function.
                $field: unsafe extern "system" fn($($argument),*) -> i32,
            )*
        }

        impl IoRingDll {
            /// Finds them in kernelbase.dll, which every process has.
            ///
            /// # Errors
            /// The name of the first function that this Windows does not have.
            #[expect(clippy::missing_transmute_annotations, reason = "the field above has the type")]
            pub fn load() -> Result<Self, &'static str> {
                let library = library()?;
                Ok(Self {
                    $($field: {
                        let found = find(library, $name)?;
                        // SAFETY: the function of this name has this form (ioringapi.h), and the
                        // library is never unloaded.
                        unsafe { std::mem::transmute::<Found, _>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    query_capabilities = c"QueryIoRingCapabilities": fn(*mut IORING_CAPABILITIES);
    create_ring = c"CreateIoRing": fn(IORING_VERSION, IORING_CREATE_FLAGS, u32, u32, *mut HIORING);
    close_ring = c"CloseIoRing": fn(HIORING);
    register_files = c"BuildIoRingRegisterFileHandles": fn(HIORING, u32, *const HANDLE, usize);
    register_buffers = c"BuildIoRingRegisterBuffers": fn(HIORING, u32, *const IORING_BUFFER_INFO, usize);
    read_file = c"BuildIoRingReadFile": fn(HIORING, IORING_HANDLE_REF, IORING_BUFFER_REF, u32, u64, usize, IORING_SQE_FLAGS);
    write_file = c"BuildIoRingWriteFile": fn(HIORING, IORING_HANDLE_REF, IORING_BUFFER_REF, u32, u64, FILE_WRITE_FLAGS, usize, IORING_SQE_FLAGS);
    flush_file = c"BuildIoRingFlushFile": fn(HIORING, IORING_HANDLE_REF, FILE_FLUSH_MODE, usize, IORING_SQE_FLAGS);
    submit_ring = c"SubmitIoRing": fn(HIORING, u32, u32, *mut u32);
    pop_completion = c"PopIoRingCompletion": fn(HIORING, *mut IORING_CQE);
}

fn library() -> Result<HMODULE, &'static str> {
    let name = wide(OsStr::new("kernelbase.dll"));
    // SAFETY: the name ends with a zero.
    let library = unsafe { GetModuleHandleW(name.as_ptr()) };
    if library.is_null() { Err("kernelbase.dll") } else { Ok(library) }
}

/// A function whose form is not known yet.
///
/// # Safety
/// Not to be called as it is.
type Found = unsafe extern "system" fn() -> isize;

fn find(library: HMODULE, name: &'static CStr) -> Result<Found, &'static str> {
    // SAFETY: the library is loaded, and the name ends with a zero.
    let found = unsafe { GetProcAddress(library, name.as_ptr().cast()) };
    found.ok_or_else(|| {
        let _ = last();
        name.to_str().unwrap_or("a function")
    })
}

fn done(result: i32) -> Result<(), HResult> {
    if HResult(result).is_success() { Ok(()) } else { Err(HResult(result)) }
}

fn ring_of(ring: RingHandle) -> HIORING {
    std::ptr::with_exposed_provenance_mut(ring.0)
}

/// The one registered file.
const FILE: IORING_HANDLE_REF =
    IORING_HANDLE_REF { Kind: IORING_REF_REGISTERED, Handle: IORING_HANDLE_REF_0 { Index: 0 } };

/// The one registered buffer, from byte `at` on.
fn buffer(at: u32) -> IORING_BUFFER_REF {
    let place = IORING_REGISTERED_BUFFER { BufferIndex: 0, Offset: at };
    IORING_BUFFER_REF {
        Kind: IORING_REF_REGISTERED,
        Buffer: IORING_BUFFER_REF_0 { IndexAndOffset: place },
    }
}

/// Longest wait for the registration of a file and a buffer, whose pages are locked by it.
const REGISTER_MAX: Duration = Duration::from_secs(30);

impl IoRingDll {
    /// Hands the two registrations over and takes their completions.
    fn await_registered(&self, ring: RingHandle) -> Result<(), HResult> {
        self.submit(ring, 0, 0)?;
        let (start, mut left) = (Instant::now(), 2);
        while left > 0 {
            match self.pop(ring)? {
                Some(completion) => {
                    done(completion.result.0)?;
                    left -= 1;
                }
                None if start.elapsed() > REGISTER_MAX => return Err(HResult::WAIT_TIMEOUT),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(())
    }
}

impl RingCalls for IoRingDll {
    fn capabilities(&self) -> Result<RingCapabilities, HResult> {
        let mut found = MaybeUninit::<IORING_CAPABILITIES>::zeroed();
        // SAFETY: writes the structure.
        done(unsafe { (self.query_capabilities)(found.as_mut_ptr()) })?;
        // SAFETY: plain numbers, zeroed above.
        let found = unsafe { found.assume_init() };
        Ok(RingCapabilities {
            version: u32::try_from(found.MaxVersion).unwrap_or(0),
            submission_max: found.MaxSubmissionQueueSize,
            completion_max: found.MaxCompletionQueueSize,
            emulated: found.FeatureFlags & IORING_FEATURE_UM_EMULATION != 0,
        })
    }

    fn create(
        &self,
        version: u32,
        submission: u32,
        completion: u32,
    ) -> Result<RingHandle, HResult> {
        let mut ring: HIORING = std::ptr::null_mut();
        let version = IORING_VERSION::try_from(version).unwrap_or(0);
        let flags = IORING_CREATE_FLAGS::default();
        // SAFETY: writes a handle through its last argument.
        done(unsafe { (self.create_ring)(version, flags, submission, completion, &raw mut ring) })?;
        Ok(RingHandle(ring.expose_provenance()))
    }

    fn close(&self, ring: RingHandle) {
        // SAFETY: the ring was made by `create`, and is closed once by its owner.
        unsafe { (self.close_ring)(ring_of(ring)) };
    }

    /// # Safety
    /// As the table says.
    unsafe fn register(
        &self,
        ring: RingHandle,
        file: Handle,
        address: *mut u8,
        bytes: u32,
    ) -> Result<(), HResult> {
        // Windows may read the lists until the requests have completed.
        let lists = Box::new((
            [raw(file)],
            [IORING_BUFFER_INFO { Address: address.cast(), Length: bytes }],
        ));
        // SAFETY: the lists stay until both requests have completed, or for ever; what they name
        // stays by the caller's promise.
        let built = done(unsafe { (self.register_files)(ring_of(ring), 1, lists.0.as_ptr(), 0) })
            .and_then(|()| {
                // SAFETY: as above.
                done(unsafe { (self.register_buffers)(ring_of(ring), 1, lists.1.as_ptr(), 1) })
            });
        let registered = built.and_then(|()| self.await_registered(ring));
        if registered.is_err() {
            std::mem::forget(lists);
        }
        registered
    }

    #[inline(always)]
    fn read(
        &self,
        ring: RingHandle,
        at: u32,
        bytes: u32,
        offset: u64,
        user_data: usize,
    ) -> Result<(), HResult> {
        // SAFETY: file and buffer are the registered ones, which Windows holds the range against.
        done(unsafe {
            (self.read_file)(
                ring_of(ring),
                FILE,
                buffer(at),
                bytes,
                offset,
                user_data,
                IOSQE_FLAGS_NONE,
            )
        })
    }

    #[inline(always)]
    fn write(
        &self,
        ring: RingHandle,
        at: u32,
        bytes: u32,
        offset: u64,
        user_data: usize,
    ) -> Result<(), HResult> {
        // SAFETY: as for `read`.
        done(unsafe {
            (self.write_file)(
                ring_of(ring),
                FILE,
                buffer(at),
                bytes,
                offset,
                FILE_WRITE_FLAGS_NONE,
                user_data,
                IOSQE_FLAGS_NONE,
            )
        })
    }

    fn flush(&self, ring: RingHandle, user_data: usize) -> Result<(), HResult> {
        // SAFETY: the file is the registered one.
        done(unsafe {
            (self.flush_file)(ring_of(ring), FILE, FILE_FLUSH_DEFAULT, user_data, IOSQE_FLAGS_NONE)
        })
    }

    #[inline(always)]
    fn submit(&self, ring: RingHandle, wait_for: u32, wait_ms: u32) -> Result<u32, HResult> {
        let mut submitted = 0;
        let ring = ring_of(ring);
        // SAFETY: writes a number through its last argument.
        done(unsafe { (self.submit_ring)(ring, wait_for, wait_ms, &raw mut submitted) })?;
        Ok(submitted)
    }

    #[inline(always)]
    fn pop(&self, ring: RingHandle) -> Result<Option<RingCompletion>, HResult> {
        let mut found = IORING_CQE::default();
        // SAFETY: writes the structure.
        let result = unsafe { (self.pop_completion)(ring_of(ring), &raw mut found) };
        done(result)?;
        // S_OK is 0; S_FALSE, 1, is an empty queue.
        Ok((result == 0).then_some(RingCompletion {
            user_data: found.UserData,
            result: HResult(found.ResultCode),
            bytes: found.Information,
        }))
    }
}
