//! Arrow files, a batch at a time.

use super::{Batches, Reader};
use crate::core::file_io::read_at;
use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, MetadataVersion, root_as_footer};
use arrow_schema::SchemaRef;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// The longest batch and the longest footer.
const MAX_BATCH_BYTES: u64 = 256 << 20;
const MAX_FOOTER_BYTES: usize = 16 << 20;
/// Bytes after the footer: its length, and the magic number.
const TRAILER: u64 = 10;

/// An Arrow file with the offsets of its batches.
pub struct ArrowFile {
    file: Arc<File>,
    schema: SchemaRef,
    version: MetadataVersion,
    dictionaries: Arc<[Block]>,
    batches: Arc<[Block]>,
    largest: usize,
}

impl ArrowFile {
    pub fn open(path: &Path) -> Result<Self, String> {
        let text = |e: &dyn ToString| e.to_string();
        let file = File::open(path).map_err(|e| text(&e))?;
        let length = file.metadata().map_err(|e| text(&e))?.len();
        let mut trailer = [0; TRAILER as usize];
        let end = length.checked_sub(TRAILER).ok_or("the file is cut short")?;
        read_at(&file, &mut trailer, end).map_err(|e| text(&e))?;
        let size = read_footer_length(trailer).map_err(|e| text(&e))?;
        if size > MAX_FOOTER_BYTES || size as u64 > end {
            return Err(format!(
                "a footer of {size} bytes; at most {MAX_FOOTER_BYTES}, and no more than the file"
            ));
        }
        let mut footer = vec![0; size];
        read_at(&file, &mut footer, end - size as u64).map_err(|e| text(&e))?;
        let footer = root_as_footer(&footer).map_err(|e| text(&e))?;
        let schema =
            try_fb_to_schema(footer.schema().ok_or("no columns are named")?).map_err(|e| text(&e))?;
        let blocks = |list: Option<flatbuffers::Vector<'_, Block>>| -> Result<Arc<[Block]>, String> {
            let blocks: Arc<[Block]> = list.iter().flatten().copied().collect();
            for block in blocks.iter() {
                let start = u64::try_from(block.offset()).ok();
                let end = start.zip(bytes(block)).and_then(|(start, bytes)| start.checked_add(bytes));
                if end.is_none_or(|stop| stop > length) || bytes(block) > Some(MAX_BATCH_BYTES) {
                    return Err(format!(
                        "a batch at byte {} of more than {MAX_BATCH_BYTES} bytes, or past the end",
                        block.offset()
                    ));
                }
            }
            Ok(blocks)
        };
        let (dictionaries, batches) = (blocks(footer.dictionaries())?, blocks(footer.recordBatches())?);
        let largest = batches.iter().filter_map(bytes).max().unwrap_or(0) as usize;
        let version = footer.version();
        Ok(Self { file: Arc::new(file), schema: Arc::new(schema), version, dictionaries, batches, largest })
    }
}

/// Bytes of a block; `None` if its lengths are invalid.
fn bytes(block: &Block) -> Option<u64> {
    u64::try_from(block.bodyLength()).ok()?.checked_add(u64::try_from(block.metaDataLength()).ok()?)
}

fn load(file: &File, block: &Block) -> Result<Buffer, String> {
    let mut buffer = MutableBuffer::from_len_zeroed(bytes(block).unwrap_or(0) as usize);
    read_at(file, &mut buffer, block.offset() as u64).map_err(|e| e.to_string())?;
    Ok(buffer.into())
}

impl Reader for ArrowFile {
    fn names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    fn start(&self, columns: &[usize]) -> Result<Box<dyn Batches>, String> {
        let decoder = FileDecoder::new(self.schema.clone(), self.version).with_projection(columns.to_vec());
        let (file, batches) = (self.file.clone(), self.batches.clone());
        let mut blocks = Blocks { file, decoder, batches, next: 0 };
        for block in self.dictionaries.iter() {
            let buffer = load(&self.file, block)?;
            blocks.decoder.read_dictionary(block, &buffer).map_err(|e| e.to_string())?;
        }
        Ok(Box::new(blocks))
    }

    fn bytes(&self, columns: &[usize], _: &[usize]) -> usize {
        let dictionaries: usize =
            self.dictionaries.iter().filter_map(bytes).map(|bytes| bytes as usize).sum();
        let blocks = (self.dictionaries.len() + self.batches.len()) * size_of::<Block>();
        2 * self.largest
            + 2 * dictionaries
            + blocks
            + (self.schema.fields().len() + columns.len()) * 1024
            + (16 << 10)
    }
}

struct Blocks {
    file: Arc<File>,
    decoder: FileDecoder,
    batches: Arc<[Block]>,
    next: usize,
}

impl Batches for Blocks {
    fn next(&mut self) -> Option<Result<RecordBatch, String>> {
        loop {
            let block = self.batches.get(self.next)?;
            self.next += 1;
            let batch = load(&self.file, block)
                .and_then(|buffer| self.decoder.read_record_batch(block, &buffer).map_err(|e| e.to_string()));
            match batch {
                Ok(None) => {}
                Ok(Some(batch)) => return Some(Ok(batch)),
                Err(reason) => return Some(Err(reason)),
            }
        }
    }
}
