//! Where the blocks are.

mod local;

use crate::SoftError;
use crate::iommu::DmaView;
use crate::options::{Backing, SoftOptions};
use crate::prp::Segments;
use nvpoll_spec::Status;
use std::fs::File;
use std::io;
use zerocopy::{FromZeros, IntoBytes};

/// Bytes in a chunk of RAM, the unit of allocation. The system gives memory to its pages as they
/// are touched, so a chunk costs what was written.
const CHUNK_BYTES: u64 = 2 << 20;
/// Chunks in one second-level table.
const TABLE_CHUNKS: u64 = 2048;
/// Bytes that a file is read or written with in one call.
const FILE_BYTES: usize = 128 << 10;

type Chunk = Box<[u64]>;
type Table = Box<[Option<Chunk>]>;

/// The namespace's content. Owned by the device alone, so plain words do.
pub(crate) enum Media {
    Null,
    Ram(Ram),
    File(FileMedia),
}

impl Media {
    pub(crate) fn open(options: &SoftOptions) -> Result<Self, SoftError> {
        Ok(match &options.backing {
            Backing::Null => Self::Null,
            Backing::Ram => Self::Ram(Ram::new(options.medium_bytes())),
            Backing::File(path) => {
                let file = open_file(path, options.medium_bytes())
                    .map_err(|source| SoftError::Backing { path: path.clone(), source })?;
                Self::File(FileMedia { file, buffer: vec![0; FILE_BYTES / 8].into() })
            }
        })
    }

    /// Copies `bytes` at `offset` to the host.
    #[inline]
    pub(crate) fn read(
        &mut self,
        view: &DmaView,
        host: &mut Segments,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Status> {
        match self {
            Self::Null => Ok(()),
            Self::Ram(ram) => {
                ram.read(view, host, offset, bytes);
                Ok(())
            }
            Self::File(file) => {
                file.read(view, host, offset, bytes).map_err(|_| Status::UNRECOVERED_READ)
            }
        }
    }

    /// Copies `bytes` from the host to `offset`.
    #[inline]
    pub(crate) fn write(
        &mut self,
        view: &DmaView,
        host: &mut Segments,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Status> {
        match self {
            Self::Null => Ok(()),
            Self::Ram(ram) => ram.write(view, host, offset, bytes),
            Self::File(file) => {
                file.write(view, host, offset, bytes).map_err(|_| Status::WRITE_FAULT)
            }
        }
    }

    /// Makes `bytes` at `offset` read as zeroes.
    pub(crate) fn zero(&mut self, offset: u64, bytes: u64) -> Result<(), Status> {
        match self {
            Self::Null => Ok(()),
            Self::Ram(ram) => {
                ram.zero(offset, bytes);
                Ok(())
            }
            Self::File(file) => file.zero(offset, bytes).map_err(|_| Status::WRITE_FAULT),
        }
    }

    /// Makes earlier writes durable.
    pub(crate) fn flush(&mut self) -> Result<(), Status> {
        match self {
            Self::Null | Self::Ram(_) => Ok(()),
            Self::File(file) => file.file.sync_data().map_err(|_| Status::WRITE_FAULT),
        }
    }
}

/// Sparse memory, in two levels, so that an empty petabyte costs a few megabytes.
pub(crate) struct Ram {
    tables: Vec<Option<Table>>,
}

/// One piece of a range: the chunk that it lies in, and the words in there.
#[derive(Clone, Copy)]
struct Piece {
    table: usize,
    chunk: usize,
    word: usize,
    words: usize,
}

/// Cuts a range, whose ends are multiples of 8, at the chunks' borders.
#[inline]
fn pieces(offset: u64, bytes: u64) -> impl Iterator<Item = Piece> {
    let end = offset + bytes;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % CHUNK_BYTES;
        let bytes = (end - at).min(CHUNK_BYTES - within);
        let index = at / CHUNK_BYTES;
        at += bytes;
        Some(Piece {
            table: (index / TABLE_CHUNKS) as usize,
            chunk: (index % TABLE_CHUNKS) as usize,
            word: (within / 8) as usize,
            words: (bytes / 8) as usize,
        })
    })
}

impl Ram {
    fn new(size_bytes: u64) -> Self {
        let tables = size_bytes.div_ceil(CHUNK_BYTES).div_ceil(TABLE_CHUNKS);
        Self { tables: (0..tables).map(|_| None).collect() }
    }

    #[inline]
    fn chunk(&self, piece: Piece) -> Option<&[u64]> {
        let table = self.tables.get(piece.table)?.as_ref()?;
        table.get(piece.chunk)?.as_ref()?.get(piece.word..piece.word + piece.words)
    }

    #[inline]
    fn chunk_mut(&mut self, piece: Piece) -> Option<&mut [u64]> {
        let table = self.tables.get_mut(piece.table)?.as_mut()?;
        table.get_mut(piece.chunk)?.as_mut()?.get_mut(piece.word..piece.word + piece.words)
    }

    #[cold]
    fn allocate(&mut self, piece: Piece) -> Option<()> {
        let table = self.tables.get_mut(piece.table)?;
        let table = table.get_or_insert_with(|| (0..TABLE_CHUNKS).map(|_| None).collect());
        let chunk = <[u64]>::new_box_zeroed_with_elems(CHUNK_BYTES as usize / 8).ok()?;
        *table.get_mut(piece.chunk)? = Some(chunk);
        Some(())
    }

    #[inline]
    fn read(&self, view: &DmaView, host: &mut Segments, offset: u64, bytes: u64) {
        for piece in pieces(offset, bytes) {
            match self.chunk(piece) {
                Some(words) => host.fill_host(view, words, 2 * words.len()),
                None => host.zero_host(view, 2 * piece.words),
            }
        }
    }

    #[inline]
    fn write(
        &mut self,
        view: &DmaView,
        host: &mut Segments,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Status> {
        for piece in pieces(offset, bytes) {
            if self.chunk(piece).is_none() {
                self.allocate(piece).ok_or(Status::WRITE_FAULT)?;
            }
            let words = self.chunk_mut(piece).ok_or(Status::WRITE_FAULT)?;
            host.take_host(view, words, 2 * piece.words);
        }
        Ok(())
    }

    fn zero(&mut self, offset: u64, bytes: u64) {
        for piece in pieces(offset, bytes) {
            if piece.words as u64 == CHUNK_BYTES / 8 {
                let table = self.tables.get_mut(piece.table).and_then(Option::as_mut);
                if let Some(chunk) = table.and_then(|table| table.get_mut(piece.chunk)) {
                    *chunk = None;
                }
            } else if let Some(words) = self.chunk_mut(piece) {
                words.fill(0);
            }
        }
    }
}

/// A regular file, by positional reads and writes through a buffer.
pub(crate) struct FileMedia {
    file: File,
    buffer: Box<[u64]>,
}

fn open_file(path: &std::path::Path, size_bytes: u64) -> io::Result<File> {
    let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    // Looked at before it is opened: opening a device or a pipe may already do something.
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            return refused("it is no regular file, and a soft controller writes to no other kind");
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.len() < size_bytes {
        file.set_len(size_bytes)?;
    }
    Ok(file)
}

#[cfg(unix)]
mod positional {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    pub(super) fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(buffer, offset)
    }

    pub(super) fn write(file: &File, buffer: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(buffer, offset)
    }
}

#[cfg(windows)]
mod positional {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::FileExt;

    pub(super) fn read(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match file.seek_read(buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => {
                    buffer = buffer.get_mut(bytes..).unwrap_or(&mut []);
                    offset += bytes as u64;
                }
            }
        }
        Ok(())
    }

    pub(super) fn write(file: &File, mut buffer: &[u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match file.seek_write(buffer, offset)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                bytes => {
                    buffer = buffer.get(bytes..).unwrap_or(&[]);
                    offset += bytes as u64;
                }
            }
        }
        Ok(())
    }
}

impl FileMedia {
    /// Calls `part` with each stretch that fits the buffer, its offset and its length in words.
    fn parts(
        &mut self,
        offset: u64,
        bytes: u64,
        mut part: impl FnMut(&File, &mut [u64], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(FILE_BYTES as u64);
            let words = self.buffer.get_mut(..(length / 8) as usize).unwrap_or(&mut []);
            part(&self.file, words, offset + done)?;
            done += length;
        }
        Ok(())
    }

    fn read(
        &mut self,
        view: &DmaView,
        host: &mut Segments,
        offset: u64,
        bytes: u64,
    ) -> io::Result<()> {
        self.parts(offset, bytes, |file, words, at| {
            positional::read(file, words.as_mut_bytes(), at)?;
            host.fill_host(view, words, 2 * words.len());
            Ok(())
        })
    }

    fn write(
        &mut self,
        view: &DmaView,
        host: &mut Segments,
        offset: u64,
        bytes: u64,
    ) -> io::Result<()> {
        self.parts(offset, bytes, |file, words, at| {
            let dwords = 2 * words.len();
            host.take_host(view, words, dwords);
            positional::write(file, words.as_bytes(), at)
        })
    }

    fn zero(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        self.parts(offset, bytes, |file, words, at| {
            words.fill(0);
            positional::write(file, words.as_bytes(), at)
        })
    }
}
