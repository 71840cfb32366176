//! An entry on disk. Whatever is read is hostile until every length is checked and both checksums agree.
//!
//! ```text
//! 0     magic and format version, 8 bytes
//!       length of the header in bytes, u32: all up to the first checksum
//!       bytes of all tensors, u64
//!       tensors u8; of each: name, element type and axes u8 each, then its sizes u64
//!       grids u32; of each: frames, height, width u32
//!       offsets u32; of each: u64
//!       checksum of the tensors' bytes, then of the key and all before it; 16 bytes each
//!       zeros
//! 4096n the tensors' bytes, one after the other, up to the end of the file
//! ```
//! Numbers are little-endian. The checksums (XXH3, 128 bits) find damage; they are no seal against one who may write to
//! the directory.

use std::io::{Error, ErrorKind, Read, Result, Write};

use twox_hash::XxHash3_128;

use super::entry::Entry;
use crate::Dtype;
use crate::family::Grid;
use crate::torch::HostBuffer;

/// Changes with the layout: an entry of another version is not read.
const MAGIC: &[u8; 8] = b"mmcache1";
/// Names that tensors of a result have; an entry stores their place here.
const NAMES: [&str; 2] = ["embeddings", "deepstack"];
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];
const PAGE: usize = 4096;
/// Longest header; the grids of one item need far less.
pub const MAX_HEADER: usize = 16 * PAGE;
/// Most axes of a tensor.
const MAX_AXES: usize = 8;
/// Bytes of a checksum.
pub const CHECKSUM: usize = 16;
/// Bytes that one step reads: still in the cache when the checksum sees them.
const STEP: usize = 256 << 10;

/// Bytes of a file for tensors of `bytes` bytes, with a page for the key and the usual header's page.
pub fn stored_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64).saturating_add(2).saturating_mul(PAGE as u64)
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}

/// XXH3 of `bytes`.
pub fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    XxHash3_128::oneshot(bytes).to_le_bytes()
}

/// Checksum of a header that is good for the entry of `key` alone: a file that is written over while it is read must
/// not give another's tensors.
fn seal(key: &[u8], header: &[u8]) -> [u8; CHECKSUM] {
    let mut hash = XxHash3_128::new();
    hash.write(key);
    hash.write(header);
    hash.finish_128().to_le_bytes()
}

/// Writes the `entry` of `key`. Errors of kind `InvalidInput` say that it has no form on disk.
pub fn write(entry: &Entry, key: &[u8], writer: &mut impl Write) -> Result<()> {
    let other = |_| Error::new(ErrorKind::InvalidInput, "a tensor cannot be stored");
    let unfit = || Error::new(ErrorKind::InvalidInput, "an entry does not fit the format");
    let payloads = entry.tensors.iter().map(|(_, tensor)| tensor.host_bytes().map_err(other));
    let payloads = payloads.collect::<Result<Vec<_>>>()?;

    let mut body = Vec::with_capacity(PAGE);
    body.extend((entry.bytes as u64).to_le_bytes());
    body.push(u8::try_from(entry.tensors.len()).map_err(|_| unfit())?);
    for (name, tensor) in &entry.tensors {
        let (shape, dtype) = (tensor.shape().map_err(other)?, tensor.dtype().map_err(other)?);
        let name = NAMES.iter().position(|known| known == name).ok_or_else(unfit)?;
        let dtype = DTYPES.iter().position(|known| *known == dtype).ok_or_else(unfit)?;
        body.extend([name as u8, dtype as u8, u8::try_from(shape.len()).map_err(|_| unfit())?]);
        shape.iter().for_each(|&size| body.extend((size as u64).to_le_bytes()));
    }
    body.extend(u32::try_from(entry.grids.len()).map_err(|_| unfit())?.to_le_bytes());
    for Grid { frames, height, width } in &entry.grids {
        [frames, height, width].iter().for_each(|side| body.extend(side.to_le_bytes()));
    }
    body.extend(u32::try_from(entry.offsets.len()).map_err(|_| unfit())?.to_le_bytes());
    entry.offsets.iter().for_each(|&offset| body.extend((offset as u64).to_le_bytes()));

    let length = MAGIC.len() + size_of::<u32>() + body.len();
    if length + 2 * CHECKSUM > MAX_HEADER {
        return Err(unfit());
    }
    let mut header = Vec::with_capacity(PAGE);
    header.extend(MAGIC);
    header.extend((length as u32).to_le_bytes());
    header.extend(body);
    let mut hash = XxHash3_128::new();
    payloads.iter().for_each(|bytes| hash.write(bytes));
    header.extend(hash.finish_128().to_le_bytes());
    header.extend(seal(key, &header));
    header.resize(header.len().next_multiple_of(PAGE), 0);
    writer.write_all(&header)?;
    payloads.iter().try_for_each(|bytes| writer.write_all(bytes))
}

/// Takes numbers off the front of a header.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(|| damaged("the header ends too early"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn size(&mut self) -> Result<usize> {
        usize::try_from(u64::from_le_bytes(self.take()?)).map_err(|_| damaged("a size beyond this machine"))
    }
}

/// Reads the entry of `key`, of which at most `available` bytes are there, header included, and at most `max_entry`
/// bytes of tensors are wanted.
pub fn read(reader: &mut impl Read, key: &[u8], available: u64, max_entry: u64) -> Result<Entry> {
    let (header, length) = read_header(reader)?;
    let (fields, checksums) =
        header.split_at_checked(length).ok_or_else(|| damaged("no room for a header"))?;
    let (payload_sum, rest) = checksums.split_first_chunk().ok_or_else(|| damaged("no checksum"))?;
    let header_sum = rest.first_chunk::<CHECKSUM>().ok_or_else(|| damaged("no checksum"))?;
    let sealed = header.get(..length + CHECKSUM).unwrap_or_default();
    if seal(key, sealed) != *header_sum {
        return Err(damaged("the header's checksum differs"));
    }
    if rest.iter().skip(CHECKSUM).any(|&byte| byte != 0) {
        return Err(damaged("the header's end is not zero"));
    }

    let mut fields = Fields(fields.get(MAGIC.len() + size_of::<u32>()..).unwrap_or_default());
    let bytes = fields.size()?;
    if (bytes as u64).checked_add(header.len() as u64).is_none_or(|all| all > available) {
        return Err(damaged("the file is shorter than its header says"));
    }
    if bytes as u64 > max_entry {
        return Err(damaged("an entry of other bounds"));
    }
    let mut shapes = Vec::new();
    let mut sum = 0usize;
    for _ in 0..fields.u8()? {
        let name = NAMES.get(usize::from(fields.u8()?)).ok_or_else(|| damaged("an unknown name"))?;
        let dtype =
            DTYPES.get(usize::from(fields.u8()?)).ok_or_else(|| damaged("an unknown element type"))?;
        let axes = usize::from(fields.u8()?);
        if axes > MAX_AXES {
            return Err(damaged("too many axes"));
        }
        let shape = (0..axes).map(|_| fields.size()).collect::<Result<Vec<_>>>()?;
        let own = shape.iter().try_fold(dtype.size(), |n, &size| n.checked_mul(size));
        sum = own.and_then(|own| sum.checked_add(own)).ok_or_else(|| damaged("too large a shape"))?;
        shapes.push((*name, *dtype, shape));
    }
    if sum != bytes {
        return Err(damaged("shapes and bytes disagree"));
    }
    let grids = (0..fields.u32()?)
        .map(|_| Ok(Grid { frames: fields.u32()?, height: fields.u32()?, width: fields.u32()? }))
        .collect::<Result<Vec<_>>>()?;
    let offsets = (0..fields.u32()?).map(|_| fields.size()).collect::<Result<Vec<_>>>()?;
    if !fields.0.is_empty() {
        return Err(damaged("the header is too long"));
    }

    let mut hash = XxHash3_128::new();
    let mut tensors = Vec::new();
    for (name, dtype, shape) in shapes {
        let own = shape.iter().product::<usize>() * dtype.size();
        let refuse = |_| Error::from(ErrorKind::OutOfMemory);
        let mut buffer = HostBuffer::new(own).map_err(refuse)?;
        for step in buffer.bytes_mut().chunks_mut(STEP) {
            reader.read_exact(step)?;
            hash.write(step);
        }
        tensors.push((name, buffer.into_tensor(&shape, dtype).map_err(refuse)?));
    }
    if hash.finish_128().to_le_bytes() != *payload_sum {
        return Err(damaged("the tensors' checksum differs"));
    }
    Ok(Entry { tensors, grids, offsets, bytes })
}

/// The header in whole pages, and the length of its fields.
fn read_header(reader: &mut impl Read) -> Result<(Vec<u8>, usize)> {
    let mut header = vec![0; PAGE];
    reader.read_exact(&mut header)?;
    let rest = header.strip_prefix(MAGIC).ok_or_else(|| damaged("no entry of this format"))?;
    let length = Fields(rest).u32()? as usize;
    let whole = length.checked_add(2 * CHECKSUM).filter(|whole| *whole <= MAX_HEADER);
    let whole = whole.ok_or_else(|| damaged("too long a header"))?;
    if whole > PAGE {
        header.resize(whole.next_multiple_of(PAGE), 0);
        reader.read_exact(header.get_mut(PAGE..).unwrap_or_default())?;
    }
    Ok((header, length))
}
