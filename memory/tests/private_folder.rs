//! What is kept on disk: when it is made again, and when not.

use std::cell::Cell;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use sinew_memory::PrivateFolder;

/// A compiler that counts.
#[derive(Default)]
struct Counting(Cell<usize>);

impl Counting {
    fn image(&self, cache: &PrivateFolder, key: &[&str]) -> Vec<u8> {
        let make = || {
            self.0.set(self.0.get() + 1);
            Ok::<_, Infallible>(image_of(key))
        };
        cache.image("gemm", key, make).expect("the compiler never fails")
    }
}

fn image_of(key: &[&str]) -> Vec<u8> {
    key.concat().bytes().rev().chain(0..=255).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map_or_else(|_| Vec::new(), |all| all.map(|entry| entry.unwrap().path()).collect())
}

#[test]
fn an_image_is_made_once_for_each_source_and_compiler() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, compiler) = (PrivateFolder::at(folder.path().join("a/b")), Counting::default());
    let keys: [&[&str]; 5] =
        [&["v1", "source"], &["v2", "source"], &["v1", "sources"], &["v1s", "ource"], &["", "v1source"]];
    for round in 1..=3 {
        for key in keys {
            assert_eq!(compiler.image(&cache, key), image_of(key));
        }
        assert_eq!(compiler.0.get(), keys.len(), "round {round}");
    }
    assert_eq!(entries(&folder.path().join("a/b")).len(), keys.len());
    assert_eq!(compiler.image(&PrivateFolder::none(), keys[0]), image_of(keys[0]));
    assert_eq!(compiler.0.get(), keys.len() + 1);
}

#[test]
fn an_entry_that_is_damaged_anywhere_is_made_again_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, compiler) = (PrivateFolder::at(folder.path()), Counting::default());
    let key = ["v1", "source"];
    compiler.image(&cache, &key);
    let path = entries(folder.path()).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    let mut made = 1;
    let mut damaged: Vec<Vec<u8>> = (0..whole.len()).step_by(7).map(|len| whole[..len].to_vec()).collect();
    damaged.push([&whole[..], b"x"].concat());
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        damaged.push(bytes);
    }
    for bytes in damaged {
        fs::write(&path, &bytes).unwrap();
        assert_eq!(compiler.image(&cache, &key), image_of(&key));
        made += 1;
        assert_eq!(compiler.0.get(), made, "{} of {} bytes were taken as they were", bytes.len(), whole.len());
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn another_key_in_the_file_of_the_same_name_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, compiler) = (PrivateFolder::at(folder.path()), Counting::default());
    compiler.image(&cache, &["one"]);
    let one = entries(folder.path()).pop().unwrap();
    compiler.image(&cache, &["two"]);
    let two = entries(folder.path()).into_iter().find(|path| *path != one).unwrap();
    fs::copy(&one, &two).unwrap();
    assert_eq!(compiler.image(&cache, &["two"]), image_of(&["two"]));
    assert_eq!(compiler.0.get(), 3);
}

#[test]
fn writers_at_the_same_time_leave_one_whole_entry() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PrivateFolder::at(folder.path());
    let made = AtomicUsize::new(0);
    let key = ["v1", "source"];
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let make = || {
                        made.fetch_add(1, Ordering::Relaxed);
                        Ok::<_, Infallible>(image_of(&key))
                    };
                    assert_eq!(cache.image("gemm", &key, make).unwrap(), image_of(&key));
                    entries(folder.path()).iter().for_each(|path| drop(fs::remove_file(path)));
                }
            });
        }
    });
    assert!(made.load(Ordering::Relaxed) >= 1);
    let compiler = Counting::default();
    compiler.image(&cache, &key);
    compiler.image(&cache, &key);
    assert!(compiler.0.get() <= 1);
    assert_eq!(entries(folder.path()).len(), 1, "an unfinished file was left behind");
}

#[test]
fn a_folder_that_cannot_be_made_costs_only_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let (cache, compiler) = (PrivateFolder::at(file.join("kernels")), Counting::default());
    for made in 1..=2 {
        assert_eq!(compiler.image(&cache, &["source"]), image_of(&["source"]));
        assert_eq!(compiler.0.get(), made);
    }
}

#[test]
fn what_the_compiler_says_is_passed_on_and_nothing_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PrivateFolder::at(folder.path());
    assert_eq!(cache.image("gemm", &["source"], || Err("line 3: no")).unwrap_err(), "line 3: no");
    assert!(entries(folder.path()).is_empty());
}

#[test]
fn of_changes_at_the_same_time_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let kept = PrivateFolder::at(folder.path().join("tuning"));
    let change = |byte: u8| move |old: Option<Vec<u8>>| [old.unwrap_or_default(), vec![byte]].concat();
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let kept = &kept;
            scope.spawn(move || (0..20).for_each(|_| kept.update("times", "v1", change(writer)).unwrap()));
        }
    });
    let mut all = kept.get("times", "v1").unwrap();
    all.sort_unstable();
    assert_eq!(all, (0..8).flat_map(|writer| [writer; 20]).collect::<Vec<u8>>());
    // Another version begins anew.
    kept.update("times", "v2", change(9)).unwrap();
    assert_eq!((kept.get("times", "v1"), kept.get("times", "v2")), (None, Some(vec![9])));
}

#[test]
fn a_change_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    assert!(PrivateFolder::at(file.join("tuning")).update("times", "v1", |_| Vec::new()).is_err());
    assert!(PrivateFolder::none().update("times", "v1", |_| Vec::new()).is_ok());
}

#[cfg(unix)]
mod private {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn entries_are_the_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("cache/sinew/kernels");
        Counting::default().image(&PrivateFolder::at(&inner), &["source"]);
        assert_eq!((mode(&inner), mode(inner.parent().unwrap())), (0o700, 0o700));
        assert_eq!(mode(&entries(&inner)[0]), 0o600);
    }

    #[test]
    fn a_folder_that_cannot_be_written_costs_only_time() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, compiler) = (PrivateFolder::at(folder.path()), Counting::default());
        compiler.image(&cache, &["kept before"]);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).unwrap();
        // Root writes where it likes.
        let forbidden = fs::write(folder.path().join("probe"), "").is_err();
        for _ in 1..=3 {
            assert_eq!(compiler.image(&cache, &["kept before"]), image_of(&["kept before"]));
            assert_eq!(compiler.image(&cache, &["source"]), image_of(&["source"]));
        }
        assert_eq!(compiler.0.get(), if forbidden { 4 } else { 2 });
    }

    #[test]
    fn what_others_could_have_written_is_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("kernels");
        let (cache, compiler) = (PrivateFolder::at(&inner), Counting::default());
        let mut made = 0;
        let mut expect = |again: usize, why: &str| {
            compiler.image(&cache, &["source"]);
            made += again;
            assert_eq!(compiler.0.get(), made, "{why}");
        };
        expect(1, "there is no entry");
        expect(0, "there is one");
        let entry = entries(&inner).pop().unwrap();
        fs::set_permissions(&entry, fs::Permissions::from_mode(0o622)).unwrap();
        expect(1, "others may write the entry");
        expect(0, "it was replaced");
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)).unwrap();
        expect(1, "others may write in the folder");
        expect(1, "and so nothing is kept in it");
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).unwrap();
        expect(0, "the folder is private again");
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&entry, &elsewhere).unwrap();
        symlink(&elsewhere, &entry).unwrap();
        expect(1, "a link is not followed");
        // Only root gives files away.
        if chown(&entry, Some(12_345), None).is_ok() {
            expect(1, "another user owns the entry");
            chown(&inner, Some(12_345), None).unwrap();
            expect(1, "another user owns the folder");
        }
    }
}
