//! The driver's compiled pipelines, kept on disk in the user's cache folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// wgpu's cache and the file that it is kept in.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) pipelines: wgpu::PipelineCache,
    file: PathBuf,
}

impl Cache {
    /// The cache of a device, filled from its file where there is a sound one; `None` where there is no place for it.
    pub(super) fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo) -> Option<Self> {
        let file = folder()?.join(format!("{}.bin", wgpu::util::pipeline_cache_key(info)?));
        let data = read(&file);
        let descriptor = wgpu::PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        // SAFETY: the data is what wgpu gave, as its checksum says; the folder is the user's own.
        let pipelines = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(Self { pipelines, file })
    }

    /// Writes the file, whole or not at all. A cache that cannot be kept costs time only.
    pub(super) fn save(&self) {
        let Some(data) = self.pipelines.get_data() else { return };
        if let Err(error) = write(&self.file, &data) {
            tracing::debug!(file = %self.file.display(), %error, "the pipeline cache was not kept");
        }
    }
}

fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    caches.is_absolute().then(|| caches.join("sinew"))
}

/// FNV-1a (Fowler, Noll, Vo): finds a file that was cut or scribbled on; drivers trust what they are given.
fn checksum(data: &[u8]) -> [u8; 8] {
    let hash = data
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash.to_le_bytes()
}

fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(file).ok()?;
    let sum = bytes.split_off(bytes.len().checked_sub(8)?);
    (sum == checksum(&bytes)).then_some(bytes)
}

fn write(file: &Path, data: &[u8]) -> std::io::Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    let mut folders = fs::DirBuilder::new();
    folders.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folders, 0o700);
    folders.create(folder)?;
    let temporary = file.with_extension(format!("{}.new", std::process::id()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&temporary).and_then(|mut open| {
        open.write_all(data)?;
        open.write_all(&checksum(data))?;
        fs::rename(&temporary, file)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_back_whole_and_not_at_all_when_it_was_touched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sinew").join("wgpu.bin");
        write(&file, b"pipelines").unwrap();
        write(&file, b"more pipelines").unwrap();
        assert_eq!(read(&file).unwrap(), b"more pipelines");
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        }
        let mut bytes = fs::read(&file).unwrap();
        bytes[3] ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert_eq!(read(&file), None);
        fs::write(&file, &bytes[..4]).unwrap();
        assert_eq!(read(&file), None);
    }
}
