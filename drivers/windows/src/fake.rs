//! Windows in memory: storage calls that do what a test tells them to.

#![allow(unsafe_code)]

use crate::{
    Access, Calls, DiskInterface, HResult, Handle, NtStatus, OpenMode, Overlapped, PortEntry,
    RingCalls, RingCapabilities, RingCompletion, RingHandle, Started, Volume, Win32Error,
};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const CANCELLED: NtStatus = NtStatus(0xc000_0120);
const END_OF_FILE: NtStatus = NtStatus(0xc000_0011);

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeds in the call itself.
    AtOnce,
    /// It is under way, and succeeds.
    Later,
    /// It succeeds in the call itself, with so many bytes.
    ShortAtOnce(u32),
    /// It is under way, and moves so many bytes.
    Short(u32),
    /// The call fails.
    FailsAtOnce(Win32Error),
    /// It is under way, and fails.
    Fails(NtStatus),
    /// It is under way, and comes out of the port twice.
    Twice,
    /// It is under way for ever, also when it is cancelled.
    Never,
}

/// A disk, volume or file of the fake.
#[derive(Clone, Debug, Default)]
pub struct FakeDisk {
    /// What it is opened by.
    pub path: String,
    /// Its data.
    pub data: Vec<u8>,
    /// Logical sector.
    pub sector_bytes: u32,
    /// Number, where it is a disk.
    pub number: Option<u32>,
    /// Service of its device node.
    pub service: Option<String>,
    /// Serial number in the descriptor, and in the controller's own page where `identify` is set.
    pub serial: String,
    /// It answers the controller's page.
    pub identify: bool,
    /// Attributes: bit 0 offline, bit 1 read-only; `None` for a disk that does not answer.
    pub attributes: Option<u64>,
    /// Partition style (0 MBR, 1 GPT, 2 none) and entries; `None` for a disk that does not answer.
    pub layout: Option<(u32, u32)>,
    /// The disks that it lies on, where it is a volume: an answer, or an error.
    pub extents: Option<Result<Vec<u32>, Win32Error>>,
    /// Opening it fails.
    pub refuses: Option<Win32Error>,
    /// Opening it for writing fails.
    pub refuses_writers: Option<Win32Error>,
}

#[derive(Debug)]
struct Request {
    port: usize,
    key: usize,
    file: usize,
    overlapped: usize,
    buffer: usize,
    bytes: u32,
    writes: bool,
    outcome: Outcome,
}

#[derive(Debug)]
struct Open {
    disk: usize,
    port: Option<(usize, usize)>,
    skips: bool,
}

#[derive(Debug, Default)]
struct State {
    disks: Vec<FakeDisk>,
    volumes: Listed,
    open: HashMap<usize, Open>,
    next: usize,
    outcomes: VecDeque<Outcome>,
    usual: Option<Outcome>,
    requests: Vec<Request>,
    flushes: u32,
    newest_first: bool,
    no_skip: bool,
    ring: Option<FakeRing>,
    ring_limits: Option<RingCapabilities>,
}

/// The list of volumes, or why there is none.
#[derive(Debug)]
struct Listed(Result<Vec<Volume>, Win32Error>);

impl Default for Listed {
    fn default() -> Self {
        Self(Ok(Vec::new()))
    }
}

#[derive(Debug, Default)]
struct FakeRing {
    file: usize,
    buffer: usize,
    buffer_bytes: u32,
    capacity: usize,
    built: Vec<(usize, Built)>,
    completed: VecDeque<RingCompletion>,
}

#[derive(Clone, Copy, Debug)]
enum Built {
    Read { at: u32, bytes: u32, offset: u64 },
    Write { at: u32, bytes: u32, offset: u64 },
    Flush,
}

/// Windows in memory. Clones share all.
#[derive(Clone, Debug, Default)]
pub struct Fake(Arc<Mutex<State>>);

impl Fake {
    /// With these disks, volumes and files.
    pub fn new(disks: Vec<FakeDisk>) -> Self {
        let fake = Self::default();
        fake.state().disks = disks;
        fake
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes of the next requests, one after the other.
    pub fn next(&self, outcomes: &[Outcome]) {
        self.state().outcomes.extend(outcomes);
    }

    /// What becomes of all others; [`Outcome::Later`] where nothing was said.
    pub fn usually(&self, outcome: Outcome) {
        self.state().usual = Some(outcome);
    }

    /// Completions come out of the port the newest first.
    pub fn newest_first(&self) {
        self.state().newest_first = true;
    }

    /// [`Calls::skip_port_on_success`] fails.
    pub fn has_no_skip(&self) {
        self.state().no_skip = true;
    }

    /// The volumes that are listed.
    pub fn lists(&self, volumes: Result<Vec<Volume>, Win32Error>) {
        self.state().volumes = Listed(volumes);
    }

    /// What its rings can do.
    pub fn rings_can(&self, limits: RingCapabilities) {
        self.state().ring_limits = Some(limits);
    }

    /// The data of the disk at `path`.
    pub fn data(&self, path: &str) -> Vec<u8> {
        let state = self.state();
        state.disks.iter().find(|disk| disk.path == path).map_or_else(Vec::new, |d| d.data.clone())
    }

    /// Flushes so far.
    pub fn flushes(&self) -> u32 {
        self.state().flushes
    }

    /// Handles and rings that are open.
    pub fn open_handles(&self) -> usize {
        let state = self.state();
        state.open.len() + usize::from(state.ring.is_some())
    }

    fn start(
        &self,
        writes: bool,
        file: Handle,
        buffer: usize,
        bytes: u32,
        overlapped: *mut Overlapped,
    ) -> Started {
        let mut state = self.state();
        let usual = state.usual.unwrap_or(Outcome::Later);
        let outcome = state.outcomes.pop_front().unwrap_or(usual);
        let Some(open) = state.open.get(&file.0) else { return Started::Failed(Win32Error(6)) };
        let (port, key) = open.port.unwrap_or_default();
        let skips = open.skips;
        let overlapped = overlapped.expose_provenance();
        let request =
            Request { port, key, file: file.0, overlapped, buffer, bytes, writes, outcome };
        match outcome {
            Outcome::FailsAtOnce(error) => return Started::Failed(error),
            Outcome::AtOnce | Outcome::ShortAtOnce(_) => {
                let moved = state.finish(&request);
                if !skips {
                    state.requests.push(Request { outcome: Outcome::Short(moved), ..request });
                }
                return Started::AtOnce { bytes: moved };
            }
            Outcome::Twice => {
                let again = Request { outcome: Outcome::Later, ..request };
                state.requests.push(again);
            }
            _ => {}
        }
        state.requests.push(request);
        Started::Pending
    }
}

impl State {
    /// Moves the data and writes the outcome where Windows would; returns the bytes.
    fn finish(&mut self, request: &Request) -> u32 {
        let overlapped: *mut Overlapped = std::ptr::with_exposed_provenance_mut(request.overlapped);
        // SAFETY: the request is under way, so that the structure is valid by `Calls`' contract.
        let offset = unsafe { (*overlapped).offset };
        let bytes = match request.outcome {
            Outcome::Short(bytes) | Outcome::ShortAtOnce(bytes) => bytes.min(request.bytes),
            Outcome::Fails(_) => 0,
            _ => request.bytes,
        };
        let disk = self.open.get(&request.file).map(|open| open.disk);
        let data = disk.and_then(|disk| self.disks.get_mut(disk)).map(|disk| &mut disk.data);
        let range = usize::try_from(offset)
            .ok()
            .and_then(|from| Some(from..from.checked_add(bytes as usize)?));
        let place = data.zip(range).and_then(|(data, range)| data.get_mut(range));
        let (status, bytes) = match (request.outcome, place) {
            (Outcome::Fails(status), _) => (status, 0),
            (_, None) => (END_OF_FILE, 0),
            (_, Some(place)) => {
                let buffer: *mut u8 = std::ptr::with_exposed_provenance_mut(request.buffer);
                // SAFETY: the buffer is valid for `request.bytes`, and `place` is no longer.
                unsafe {
                    match request.writes {
                        true => {
                            std::ptr::copy_nonoverlapping(buffer, place.as_mut_ptr(), place.len())
                        }
                        false => std::ptr::copy_nonoverlapping(place.as_ptr(), buffer, place.len()),
                    }
                }
                (NtStatus::SUCCESS, bytes)
            }
        };
        // SAFETY: as above.
        unsafe {
            (*overlapped).internal = status.0 as usize;
            (*overlapped).internal_high = bytes as usize;
        }
        bytes
    }

    fn disk_of(&self, handle: Handle) -> Result<&FakeDisk, Win32Error> {
        let open = self.open.get(&handle.0).ok_or(Win32Error(6))?;
        self.disks.get(open.disk).ok_or(Win32Error(6))
    }

    fn new_handle(&mut self, disk: usize) -> Handle {
        self.next += 4;
        self.open.insert(self.next, Open { disk, port: None, skips: false });
        Handle(self.next)
    }
}

/// The answer of `disk` to `code`, in the structures of winioctl.h.
fn answer(disk: &FakeDisk, code: u32, input: &[u8]) -> Result<Vec<u8>, Win32Error> {
    let mut bytes = vec![0; 4144];
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    let length = disk.data.len() as u64;
    match (code, disk.number) {
        (0x2d_1080, Some(number)) => put(4, &number.to_le_bytes()),
        (0x7_405c, _) => put(0, &length.to_le_bytes()),
        (0x7_00a0, _) if disk.sector_bytes != 0 => {
            put(20, &disk.sector_bytes.to_le_bytes());
            put(24, &length.to_le_bytes());
        }
        (0x7_00f0, Some(_)) => {
            put(8, &disk.attributes.ok_or(Win32Error::NOT_SUPPORTED)?.to_le_bytes());
        }
        (0x7_0050, Some(_)) => {
            let (style, entries) = disk.layout.ok_or(Win32Error::NOT_SUPPORTED)?;
            put(0, &style.to_le_bytes());
            put(4, &entries.to_le_bytes());
            // An MBR's table has four entries always, of which the first are used here.
            if style == 0 {
                put(4, &4u32.to_le_bytes());
                (0..entries as usize).for_each(|entry| put(48 + 144 * entry + 32, &[7]));
            }
        }
        (0x56_0000, _) => {
            let numbers = disk.extents.clone().ok_or(Win32Error::INVALID_FUNCTION)??;
            put(0, &(numbers.len() as u32).to_le_bytes());
            for (index, number) in numbers.iter().enumerate() {
                put(8 + 24 * index, &number.to_le_bytes());
            }
        }
        (0x2d_1400, Some(_)) if input.first() == Some(&0) => {
            put(12, &64u32.to_le_bytes());
            put(16, &80u32.to_le_bytes());
            put(20, &120u32.to_le_bytes());
            put(24, &140u32.to_le_bytes());
            put(28, &17u32.to_le_bytes());
            put(64, b"NVMe    \0");
            put(80, b"ACME Fast 1TB   \0");
            put(120, b"1.0 \0");
            put(140, b"  0000_0001_0002_0003.\0");
        }
        (0x2d_1400, Some(_)) if input.first() == Some(&49) && disk.identify => {
            put(8 + 16, &40u32.to_le_bytes());
            put(48 + 4, format!("{:<20}", disk.serial).as_bytes());
            put(48 + 24, format!("{:<40}", "ACME Fast Drive 1TB").as_bytes());
            put(48 + 64, b"1.0.7   ");
        }
        _ => return Err(Win32Error::NOT_SUPPORTED),
    }
    Ok(bytes)
}

impl Calls for Fake {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Handle, Win32Error> {
        let mut state = self.state();
        let text = path.to_string_lossy();
        let found = state.disks.iter().position(|disk| disk.path == text);
        let found = found.ok_or(Win32Error::FILE_NOT_FOUND)?;
        let disk = state.disks.get(found).ok_or(Win32Error::FILE_NOT_FOUND)?;
        let refusal = match mode.access {
            Access::ReadWrite => disk.refuses.or(disk.refuses_writers),
            _ => disk.refuses,
        };
        if let Some(error) = refusal {
            return Err(error);
        }
        Ok(state.new_handle(found))
    }

    fn close(&self, handle: Handle) {
        self.state().open.remove(&handle.0);
    }

    fn file_bytes(&self, file: Handle) -> Result<u64, Win32Error> {
        let state = self.state();
        let disk = state.disk_of(file)?;
        if disk.number.is_some() {
            Err(Win32Error::INVALID_PARAMETER)
        } else {
            Ok(disk.data.len() as u64)
        }
    }

    fn sector_bytes(&self, file: Handle) -> Result<u32, Win32Error> {
        let bytes = self.state().disk_of(file)?.sector_bytes;
        if bytes == 0 { Err(Win32Error::NOT_SUPPORTED) } else { Ok(bytes) }
    }

    fn control(
        &self,
        device: Handle,
        code: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, Win32Error> {
        let answer = answer(self.state().disk_of(device)?, code, input)?;
        let bytes = answer.len().min(output.len());
        if let Some((to, from)) = output.get_mut(..bytes).zip(answer.get(..bytes)) {
            to.copy_from_slice(from);
        }
        Ok(bytes)
    }

    fn new_port(&self) -> Result<Handle, Win32Error> {
        Ok(self.state().new_handle(usize::MAX))
    }

    fn join(&self, port: Handle, file: Handle, key: usize) -> Result<(), Win32Error> {
        let mut state = self.state();
        let open = state.open.get_mut(&file.0).ok_or(Win32Error(6))?;
        if open.port.is_some() {
            return Err(Win32Error::INVALID_PARAMETER);
        }
        open.port = Some((port.0, key));
        Ok(())
    }

    fn skip_port_on_success(&self, file: Handle) -> Result<(), Win32Error> {
        let mut state = self.state();
        if state.no_skip {
            return Err(Win32Error::INVALID_PARAMETER);
        }
        state.open.get_mut(&file.0).ok_or(Win32Error(6))?.skips = true;
        Ok(())
    }

    /// # Safety
    /// As the table says.
    unsafe fn read(
        &self,
        file: Handle,
        buffer: *mut u8,
        bytes: u32,
        overlapped: *mut Overlapped,
    ) -> Started {
        self.start(false, file, buffer.expose_provenance(), bytes, overlapped)
    }

    /// # Safety
    /// As the table says.
    unsafe fn write(
        &self,
        file: Handle,
        buffer: *const u8,
        bytes: u32,
        overlapped: *mut Overlapped,
    ) -> Started {
        self.start(true, file, buffer.expose_provenance(), bytes, overlapped)
    }

    fn flush(&self, _file: Handle) -> Result<(), Win32Error> {
        self.state().flushes += 1;
        Ok(())
    }

    fn dequeue(
        &self,
        port: Handle,
        entries: &mut [PortEntry],
        wait_ms: u32,
    ) -> Result<usize, Win32Error> {
        let mut state = self.state();
        let mut found = 0;
        for entry in entries {
            let is_done =
                |request: &Request| request.port == port.0 && request.outcome != Outcome::Never;
            let index = match state.newest_first {
                true => state.requests.iter().rposition(is_done),
                false => state.requests.iter().position(is_done),
            };
            let Some(index) = index else { break };
            let request = state.requests.remove(index);
            let bytes = state.finish(&request);
            let overlapped: *const Overlapped =
                std::ptr::with_exposed_provenance(request.overlapped);
            // SAFETY: as in `finish`.
            let internal = unsafe { (*overlapped).internal };
            *entry =
                PortEntry { key: request.key, overlapped: request.overlapped, internal, bytes };
            found += 1;
        }
        drop(state);
        if found == 0 {
            std::thread::sleep(Duration::from_millis(wait_ms.into()));
        }
        Ok(found)
    }

    fn cancel_all(&self, file: Handle) {
        let mut state = self.state();
        for request in &mut state.requests {
            if request.file == file.0 && request.outcome != Outcome::Never {
                request.outcome = Outcome::Fails(CANCELLED);
            }
        }
    }

    fn error_of(&self, status: NtStatus) -> Win32Error {
        match status {
            NtStatus::SUCCESS => Win32Error(0),
            END_OF_FILE => Win32Error::HANDLE_EOF,
            CANCELLED => Win32Error::OPERATION_ABORTED,
            NtStatus(0xc000_0022) => Win32Error::ACCESS_DENIED,
            NtStatus(0xc000_0185) => Win32Error::IO_DEVICE,
            NtStatus(_) => Win32Error(317),
        }
    }

    fn disks(&self) -> Result<Vec<DiskInterface>, Win32Error> {
        let state = self.state();
        let disks = state.disks.iter().filter(|disk| disk.number.is_some());
        Ok(disks
            .map(|disk| DiskInterface { path: disk.path.clone(), service: disk.service.clone() })
            .collect())
    }

    fn volumes(&self) -> Result<Vec<Volume>, Win32Error> {
        self.state().volumes.0.clone()
    }
}

/// The rings of the fake: one at a time.
impl RingCalls for Fake {
    fn capabilities(&self) -> Result<RingCapabilities, HResult> {
        Ok(self.state().ring_limits.unwrap_or(RingCapabilities {
            version: 300,
            submission_max: 65_536,
            completion_max: 131_072,
            emulated: false,
        }))
    }

    fn create(&self, _: u32, submission: u32, _: u32) -> Result<RingHandle, HResult> {
        let ring = FakeRing { capacity: submission as usize, ..FakeRing::default() };
        self.state().ring = Some(ring);
        Ok(RingHandle(1))
    }

    fn close(&self, _: RingHandle) {
        self.state().ring = None;
    }

    /// # Safety
    /// As the table says.
    unsafe fn register(
        &self,
        _: RingHandle,
        file: Handle,
        address: *mut u8,
        bytes: u32,
    ) -> Result<(), HResult> {
        let mut state = self.state();
        let ring = state.ring.as_mut().ok_or(HResult(-1))?;
        (ring.file, ring.buffer, ring.buffer_bytes) = (file.0, address.expose_provenance(), bytes);
        Ok(())
    }

    fn read(
        &self,
        _: RingHandle,
        at: u32,
        bytes: u32,
        offset: u64,
        user_data: usize,
    ) -> Result<(), HResult> {
        self.build(user_data, Built::Read { at, bytes, offset })
    }

    fn write(
        &self,
        _: RingHandle,
        at: u32,
        bytes: u32,
        offset: u64,
        user_data: usize,
    ) -> Result<(), HResult> {
        self.build(user_data, Built::Write { at, bytes, offset })
    }

    fn flush(&self, _: RingHandle, user_data: usize) -> Result<(), HResult> {
        self.build(user_data, Built::Flush)
    }

    fn submit(&self, _: RingHandle, wait_for: u32, wait_ms: u32) -> Result<u32, HResult> {
        let mut state = self.state();
        let built = std::mem::take(&mut state.ring.as_mut().ok_or(HResult(-1))?.built);
        let count = built.len() as u32;
        for (user_data, request) in built {
            let outcome = state.outcomes.pop_front().or(state.usual).unwrap_or(Outcome::Later);
            state.ring_request(user_data, request, outcome);
        }
        let newest_first = state.newest_first;
        let ring = state.ring.as_mut().ok_or(HResult(-1))?;
        if newest_first {
            ring.completed.make_contiguous().reverse();
        }
        let is_short = (ring.completed.len() as u32) < wait_for;
        drop(state);
        if is_short {
            std::thread::sleep(Duration::from_millis(wait_ms.into()));
            return Err(HResult::WAIT_TIMEOUT);
        }
        Ok(count)
    }

    fn pop(&self, _: RingHandle) -> Result<Option<RingCompletion>, HResult> {
        let mut state = self.state();
        Ok(state.ring.as_mut().ok_or(HResult(-1))?.completed.pop_front())
    }
}

impl Fake {
    fn build(&self, user_data: usize, built: Built) -> Result<(), HResult> {
        let mut state = self.state();
        let ring = state.ring.as_mut().ok_or(HResult(-1))?;
        if ring.built.len() >= ring.capacity {
            return Err(HResult::QUEUE_FULL);
        }
        ring.built.push((user_data, built));
        Ok(())
    }
}

impl State {
    fn ring_request(&mut self, user_data: usize, request: Built, outcome: Outcome) {
        let (writes, at, bytes, offset) = match request {
            Built::Flush => {
                self.flushes += 1;
                return self.ring_complete(user_data, HResult::OK, 0);
            }
            Built::Read { at, bytes, offset } => (false, at, bytes, offset),
            Built::Write { at, bytes, offset } => (true, at, bytes, offset),
        };
        let Some(ring) = &self.ring else { return };
        let fits = at.checked_add(bytes).is_some_and(|end| end <= ring.buffer_bytes);
        let (file, buffer) = (ring.file, ring.buffer + at as usize);
        if !fits {
            return self.ring_complete(user_data, HResult(0x8007_0057_u32 as i32), 0);
        }
        let mut overlapped = Overlapped { offset, ..Overlapped::default() };
        let overlapped = (&raw mut overlapped).expose_provenance();
        let request = Request { port: 0, key: 0, file, overlapped, buffer, bytes, writes, outcome };
        let result = match outcome {
            Outcome::Never => return,
            Outcome::FailsAtOnce(error) => HResult((0x8007_0000 | error.0) as i32),
            Outcome::Fails(_) => HResult(0x8007_045d_u32 as i32),
            _ => HResult::OK,
        };
        let moved = if result.is_success() { self.finish(&request) } else { 0 };
        self.ring_complete(user_data, result, moved as usize);
        if outcome == Outcome::Twice {
            self.ring_complete(user_data, result, moved as usize);
        }
    }

    fn ring_complete(&mut self, user_data: usize, result: HResult, bytes: usize) {
        if let Some(ring) = &mut self.ring {
            ring.completed.push_back(RingCompletion { user_data, result, bytes });
        }
    }
}
