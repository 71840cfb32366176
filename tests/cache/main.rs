//! The cache under threads that insert, look up, hold, damage and close, with the invariants looked at all the time.
#![cfg(feature = "torch")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mm_libtorch_encoder::cache::{Cache, CacheConfig, Entry};
use mm_libtorch_encoder::family::Grid;
use mm_libtorch_encoder::torch::{self, Device, Tensor};

const ROWS: usize = 16;
const COLUMNS: usize = 64;
const ENTRY_BYTES: u64 = (ROWS * COLUMNS * 4) as u64;
const KEYS: u64 = 64;

/// Live bytes are those of the process: its tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn bridge() {
    torch::open(env!("MM_TORCH_BRIDGE").as_ref()).expect("LD_LIBRARY_PATH has LibTorch");
}

fn values(number: u64) -> Vec<f32> {
    (0..ROWS * COLUMNS).map(|i| (number * 1000) as f32 + i as f32).collect()
}

fn config(disk: Option<&Path>, entries: u64) -> CacheConfig {
    CacheConfig {
        memory_bytes: entries * (ENTRY_BYTES + 1024),
        disk_path: disk.map(Path::to_owned),
        disk_bytes: if disk.is_some() { 40 * (ENTRY_BYTES + 2 * 4096) } else { 0 },
        max_entry_bytes: ENTRY_BYTES,
    }
}

fn insert(cache: &Cache, number: u64) -> Option<Arc<Entry>> {
    let tensor = Tensor::from_slice(&values(number), &[ROWS, COLUMNS]).expect("memory");
    let key = cache.key(&number.to_string());
    let named = [("embeddings", tensor)];
    cache.insert(&key, &named, Device::Cpu, &[Grid::still(4, 4)], &[0, ROWS]).expect("memory")
}

fn check(entry: &Entry, number: u64) {
    let bytes: Vec<u8> = values(number).iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert!(
        entry.embeddings().unwrap().host_bytes().unwrap() == bytes,
        "entry {number} has another's content"
    );
    assert_eq!(entry.grids(), [Grid::still(4, 4)]);
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[test]
fn entries_of_any_shape_come_back_from_disk() {
    bridge();
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = tempfile::tempdir().unwrap();
    let config = CacheConfig {
        memory_bytes: 1 << 24,
        disk_path: Some(folder.path().to_owned()),
        disk_bytes: 1 << 26,
        max_entry_bytes: 1 << 23,
    };
    let shapes: [&[usize]; 6] = [&[0, 8], &[1, 1], &[3, 5], &[1000, 33], &[2, 3, 4, 5], &[70_000, 20]];
    let grids: Vec<Grid> = (1..600).map(|n| Grid::still(n, n)).collect();
    let write = Cache::open(&config, [1; 32]).unwrap();
    for (i, shape) in shapes.iter().enumerate() {
        let elements: Vec<f32> = (0..shape.iter().product()).map(|n| (n * i) as f32).collect();
        let named = [
            ("embeddings", Tensor::from_slice(&elements, shape).unwrap()),
            ("deepstack", Tensor::from_slice(&[half::bf16::ONE; 6], &[2, 3]).unwrap()),
        ];
        write.insert(&write.key(&i.to_string()), &named, Device::Cpu, &grids, &[0, 7]).unwrap().unwrap();
    }
    drop(write);
    let read = Cache::open(&config, [1; 32]).unwrap();
    for (i, shape) in shapes.iter().enumerate() {
        let key = read.key(&i.to_string());
        assert!(read.get(&key).is_none() && read.on_disk(&key));
        let entry = read.load(&key, |_| true).expect("on disk");
        let tensors = entry.tensors().unwrap();
        assert_eq!(tensors[0].1.shape().unwrap(), *shape);
        let elements: Vec<u8> =
            (0..shape.iter().product::<usize>()).flat_map(|n| ((n * i) as f32).to_ne_bytes()).collect();
        assert_eq!(tensors[0].1.host_bytes().unwrap(), elements);
        assert_eq!((tensors[1].0, tensors[1].1.shape().unwrap()), ("deepstack", vec![2, 3]));
        assert_eq!((entry.grids(), entry.offsets()), (&grids[..], &[0, 7][..]));
    }
    assert!(Cache::open(&config, [1; 32]).is_err(), "one cache a directory");
    drop(read);
    let other = Cache::open(&config, [2; 32]).unwrap();
    assert!(!other.on_disk(&other.key("0")), "another namespace has other keys");
    assert_eq!((other.stats().errors, other.stats().disk_hits), (0, 0));
}

#[test]
fn what_lies_in_memory_is_shared_and_bounded() {
    bridge();
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = torch::live_host_bytes();
    let cache = Cache::open(&config(None, 8), [0; 32]).unwrap();
    let kept: Vec<_> = (0..20).map(|number| insert(&cache, number).unwrap()).collect();
    assert!(cache.stats().memory_bytes <= 8 * (ENTRY_BYTES + 1024));
    let pointer = |entry: &Entry| entry.embeddings().unwrap().host_bytes().unwrap().as_ptr();
    let hit = cache.get(&cache.key("19")).expect("the newest");
    assert_eq!(pointer(&hit), pointer(&kept[19]));
    assert_eq!(hit.tensors().unwrap()[0].1.host_bytes().unwrap().as_ptr(), pointer(&hit));
    assert!(cache.get(&cache.key("0")).is_none());
    assert_eq!(torch::live_host_bytes(), before + 20 * ENTRY_BYTES);
    let view = kept[0].tensors().unwrap().remove(0).1;
    drop((kept, hit));
    assert_eq!(torch::live_host_bytes(), before + 9 * ENTRY_BYTES);
    cache.close();
    assert_eq!(cache.stats().memory_bytes, 0);
    drop(cache);
    assert_eq!(torch::live_host_bytes(), before + ENTRY_BYTES);
    assert_eq!(view.shape().unwrap(), [ROWS, COLUMNS]);
    drop(view);
    assert_eq!(torch::live_host_bytes(), before);
}

#[test]
fn an_entry_fits_into_memory_with_what_it_takes_beside_its_tensors() {
    bridge();
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for beside in [0, 1023, 1024] {
        let config = CacheConfig { memory_bytes: ENTRY_BYTES + beside, ..config(None, 1) };
        let cache = Cache::open(&config, [0; 32]).unwrap();
        let kept = insert(&cache, 1).is_some();
        let stats = cache.stats();
        assert!(stats.memory_bytes <= config.memory_bytes, "{stats:?}");
        assert_eq!((kept, stats.bypasses), if beside < 1024 { (false, 1) } else { (true, 0) });
    }
}

#[test]
fn an_entry_on_disk_that_is_larger_than_allowed_is_not_loaded() {
    bridge();
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = tempfile::tempdir().unwrap();
    let written = config(Some(folder.path()), 8);
    insert(&Cache::open(&written, [0; 32]).unwrap(), 1).expect("small enough");
    let smaller = CacheConfig { max_entry_bytes: ENTRY_BYTES - 1, ..written };
    let cache = Cache::open(&smaller, [0; 32]).unwrap();
    let key = cache.key("1");
    assert!(cache.on_disk(&key) && cache.load(&key, |_| true).is_none());
    let stats = cache.stats();
    assert_eq!((stats.errors, stats.disk_hits, stats.memory_bytes, stats.disk_bytes), (1, 0, 0, 0));
    assert!(!cache.on_disk(&key));
}

/// Readers, writers, holders, a saboteur of the directory and restarts, for `time`.
fn torture(time: Duration) {
    bridge();
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = torch::live_host_bytes();
    let folder = tempfile::tempdir().unwrap();
    let end = Instant::now() + time;
    let (served, round) = (AtomicU64::new(0), AtomicU64::new(0));
    let (mut disk_hits, mut errors) = (0, 0);
    while Instant::now() < end {
        let seed = round.fetch_add(1, Ordering::Relaxed);
        let config = config(Some(folder.path()), 10);
        let cache = Cache::open(&config, [7; 32]).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for worker in 0..4 {
                let (cache, stop, served, config) = (&cache, &stop, &served, &config);
                scope.spawn(move || {
                    let mut state = seed * 10 + worker;
                    let mut held = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let number = next(&mut state) % KEYS;
                        let key = cache.key(&number.to_string());
                        let found = cache.get(&key).or_else(|| cache.load(&key, |_| true));
                        served.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
                        let entry = found.or_else(|| insert(cache, number)).expect("small enough");
                        check(&entry, number);
                        assert!(cache.stats().memory_bytes <= config.memory_bytes);
                        assert!(cache.stats().disk_bytes <= config.disk_bytes);
                        match next(&mut state) % 8 {
                            0 => held.push((number, entry.tensors().unwrap())),
                            1 => held.clear(),
                            _ => (),
                        }
                    }
                    for (number, tensors) in held {
                        let first = tensors[0].1.host_bytes().unwrap().first_chunk().unwrap();
                        assert_eq!(f32::from_ne_bytes(*first), (number * 1000) as f32);
                    }
                });
            }
            let saboteur = scope.spawn(|| {
                let mut state = seed;
                while !stop.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
                    let file = files[next(&mut state) as usize % files.len()].path();
                    if file.file_name().is_some_and(|name| name == "lock") {
                        continue;
                    }
                    let _ = match next(&mut state) % 4 {
                        0 => fs::remove_file(&file),
                        1 => fs::write(&file, b"nothing"),
                        2 => fs::OpenOptions::new()
                            .write(true)
                            .open(&file)
                            .and_then(|file| file.set_len(next(&mut state) % 12_000)),
                        _ => fs::copy(files[0].path(), &file).map(drop),
                    };
                }
            });
            thread::sleep(Duration::from_millis(150));
            if seed % 2 == 0 {
                // Closed under all of them: they go on without it.
                cache.close();
                assert_eq!(cache.stats().disk_bytes, 0);
                thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, Ordering::Relaxed);
            saboteur.join().unwrap();
        });
        disk_hits += cache.stats().disk_hits;
        errors += cache.stats().errors;
        drop(cache);
        assert_eq!(torch::live_host_bytes(), before, "an entry outlived its last owner");
    }
    println!("torture: {} served, {disk_hits} from disk, {errors} faults", served.load(Ordering::Relaxed));
    assert!(disk_hits > 0 && errors > 0);
}

#[test]
fn short_torture() {
    torture(Duration::from_secs(2));
}

#[test]
#[ignore = "a minute; cargo test --features torch --test cache -- --ignored"]
fn long_torture() {
    torture(Duration::from_secs(60));
}
