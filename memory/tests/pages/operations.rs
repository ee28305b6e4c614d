//! Random operations on a device's and a host's pool: every table has the blocks that the model says, every slot what
//! was written there, every count is right.

use std::collections::VecDeque;
use std::time::Instant;

use sinew_memory::{BlockId, BlockTable, CopyBlock, Error, PagePool, PageStats, PrefixConfig, SwapBlocks};

use super::common::{Random, operations};
use super::model::{Key, Model};
use super::{BLOCK_SIZE, config, content, contents};

const BLOCKS: [usize; 2] = [40, 24];
const MOST_TOKENS: usize = 40;
const MOST_SEQUENCES: usize = 8;
/// What a slot holds that nobody may read.
const POISON: u64 = u64::MAX;

/// A pool, its bytes (a number for each slot), its model, and the blocks that somebody took by hand.
struct Place {
    pool: PagePool,
    slots: Vec<u64>,
    model: Model,
    by_hand: Vec<BlockId>,
}

struct Sequence {
    place: usize,
    table: BlockTable,
    salt: u64,
    words: Vec<u32>,
    /// What its slots hold.
    contents: Vec<u64>,
    /// The blocks that it must have, and how many were released before them.
    blocks: Vec<BlockId>,
    first_block: usize,
}

/// Bytes that are still to be copied.
enum Copy {
    Block(usize, CopyBlock),
    Swap(usize, usize, SwapBlocks),
}

struct World {
    random: Random,
    places: [Place; 2],
    sequences: Vec<Sequence>,
    copies: VecDeque<Copy>,
    copied: usize,
    refused: usize,
    swapped: usize,
    exchanged: usize,
    /// Appends that were taken back, and swaps that went on from what was found.
    taken_back: usize,
    gone_on: usize,
}

fn at(block: BlockId, slot: usize) -> usize {
    block.0 as usize * BLOCK_SIZE + slot
}

impl World {
    fn new(seed: u64, prefixes: PrefixConfig) -> Self {
        let places = BLOCKS.map(|blocks| Place {
            pool: PagePool::with_prefixes(config(blocks), prefixes).expect("a small pool"),
            slots: vec![POISON; blocks * BLOCK_SIZE],
            model: Model::new(blocks, prefixes.remembered),
            by_hand: Vec::new(),
        });
        let (sequences, copies) = (Vec::new(), VecDeque::new());
        let [copied, refused, swapped, exchanged, taken_back, gone_on] = [0; 6];
        let random = Random(seed);
        Self { random, places, sequences, copies, copied, refused, swapped, exchanged, taken_back, gone_on }
    }

    fn operation(&mut self) {
        let count = self.sequences.len();
        let index = self.random.below(count);
        match self.random.below(1000) {
            0..150 if count < MOST_SEQUENCES => self.look_up(),
            _ if count == 0 => {}
            500..560 if count < MOST_SEQUENCES => self.fork(index),
            560..620 => self.truncate(index),
            620..670 => self.release_before(index),
            670..760 => self.publish(index),
            760..800 => self.swap(index),
            800..830 => self.swap_behind(index),
            830..870 => self.drop_sequence(index),
            870..880 => self.clear_table(index),
            880..945 => self.copy_first(),
            945..960 => self.take_back(index),
            960..975 => self.take_by_hand(),
            975..990 => self.give_back_by_hand(),
            990..999 => self.evict(),
            999 if self.random.below(4) == 0 => self.clear_prefixes(),
            _ => self.append(index),
        }
    }

    /// A sequence that starts as another one does, or not.
    fn look_up(&mut self) {
        let place = usize::from(self.random.below(4) == 0);
        let (mut salt, mut words) = (1 + self.random.below(2) as u64, Vec::new());
        if let Some(other) = self.sequences.get(self.random.below(self.sequences.len()))
            && self.random.below(8) != 0
        {
            (salt, words) = (other.salt, other.words[..self.random.below(other.words.len() + 1)].to_vec());
        }
        for _ in 0..self.random.below(6) {
            words.push(self.random.below(2) as u32);
        }
        words.truncate(MOST_TOKENS);
        let mut contents = contents(salt, &words);
        let (table, first_block, blocks) = self.start(place, salt, &words, &contents);
        let tokens = (first_block + blocks.len()) * BLOCK_SIZE;
        words.truncate(tokens);
        contents.truncate(tokens);
        self.sequences.push(Sequence { place, table, salt, words, contents, blocks, first_block });
    }

    /// A table that starts with what is found of these words, how many blocks it does not see, and those that it has.
    fn start(&mut self, place: usize, salt: u64, words: &[u32], contents: &[u64]) -> (BlockTable, usize, Vec<BlockId>) {
        let Place { pool, model, .. } = &mut self.places[place];
        let keys: Vec<Key> = (0..words.len() / BLOCK_SIZE).map(|block| Key::of(salt, contents, block)).collect();
        let window = if self.random.below(2) == 0 { usize::MAX } else { 1 + self.random.below(3 * BLOCK_SIZE) };
        if self.random.below(2) == 0 {
            let (first_block, blocks) = model.look_up(&keys, window);
            let tokens = (first_block + blocks.len()) * BLOCK_SIZE;
            assert_eq!(pool.matching_seen(salt, words, window).expect("whole tokens"), tokens);
        }
        // Now and then no more than others of the sequence might have found.
        let most = if self.random.below(2) == 0 { usize::MAX } else { self.random.below(words.len() + 2) };
        let (first_block, blocks) = model.look_up(&keys[..keys.len().min(most / BLOCK_SIZE)], window);
        let found = first_block + blocks.len();
        let mut table = pool.table();
        let tokens = match most {
            usize::MAX => table.lookup_seen(salt, words, window),
            most => table.lookup_within(salt, words, window, most),
        };
        assert_eq!(tokens.expect("an empty table"), found * BLOCK_SIZE);
        blocks.iter().for_each(|&block| model.retain(block));
        model.want(&keys[first_block..found]);
        model.hits += found as u64;
        model.misses += (keys.len() - found) as u64;
        (table, first_block, blocks)
    }

    fn append(&mut self, index: usize) {
        let sequence = &mut self.sequences[index];
        let Place { pool, slots, model, .. } = &mut self.places[sequence.place];
        let held = sequence.words.len();
        let tokens = self.random.below(7).min(MOST_TOKENS - held);
        let new_blocks = (held + tokens).div_ceil(BLOCK_SIZE) - sequence.first_block - sequence.blocks.len();
        let half_filled = tokens > 0 && !held.is_multiple_of(BLOCK_SIZE);
        let copies = half_filled && sequence.blocks.last().is_some_and(|&last| model.is_frozen(last));
        let needed = new_blocks + usize::from(copies);
        assert_eq!(sequence.table.blocks_needed(tokens), needed);
        let before = pool.stats();
        match sequence.table.append(tokens) {
            Ok(copy) => {
                assert!(needed <= model.available());
                assert_eq!(copy.is_some(), copies);
                if let Some(copy) = copy {
                    let to = model.allocate();
                    model.retain(to);
                    let from = sequence.blocks.pop().expect("half-filled");
                    sequence.blocks.push(to);
                    assert_eq!((copy.from(), copy.to(), copy.tokens()), (from, to, held % BLOCK_SIZE));
                    self.copies.push_back(Copy::Block(sequence.place, copy));
                    self.copied += 1;
                }
                sequence.blocks.extend((0..new_blocks).map(|_| model.allocate()));
                for _ in 0..tokens {
                    let word = self.random.below(2) as u32;
                    let value = content(sequence.contents.last().copied().unwrap_or(sequence.salt), word);
                    let (block, slot) = sequence.table.slot(sequence.words.len()).expect("just appended");
                    assert!(model.blocks[block.0 as usize].key.is_none(), "a write into a published block");
                    slots[at(block, slot)] = value;
                    sequence.words.push(word);
                    sequence.contents.push(value);
                }
            }
            Err(Error::OutOfBlocks { asked, free, total }) => {
                assert_eq!((asked, free, total), (needed, model.available(), model.blocks.len()));
                assert!(asked > free);
                assert_eq!(pool.stats(), before, "a refusal changes nothing");
                self.refused += 1;
                // Make room now and then, or the rest of the run is refusals.
                if self.random.below(2) == 0 {
                    let other = self.random.below(self.sequences.len());
                    self.drop_sequence(other);
                }
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn fork(&mut self, index: usize) {
        let Sequence { place, table, salt, words, contents, blocks, first_block } = &self.sequences[index];
        let model = &mut self.places[*place].model;
        blocks.iter().for_each(|&block| model.retain(block));
        let (salt, words, contents, blocks) = (*salt, words.clone(), contents.clone(), blocks.clone());
        let (place, table, first_block) = (*place, table.fork().expect("few"), *first_block);
        self.sequences.push(Sequence { place, table, salt, words, contents, blocks, first_block });
    }

    fn truncate(&mut self, index: usize) {
        let Sequence { place, table, words, contents, blocks, first_block, .. } = &mut self.sequences[index];
        let kept = match self.random.below(3) {
            0 => self.random.below(words.len() + 3),
            _ => words.len().saturating_sub(self.random.below(4)),
        };
        let allowed = *first_block * BLOCK_SIZE <= kept && kept <= words.len();
        assert_eq!(table.truncate(kept).is_ok(), allowed);
        if allowed {
            words.truncate(kept);
            contents.truncate(kept);
            let left = kept.div_ceil(BLOCK_SIZE) - *first_block;
            blocks.drain(left..).rev().for_each(|block| self.places[*place].model.release(block));
        }
    }

    fn release_before(&mut self, index: usize) {
        let Sequence { place, table, words, blocks, first_block, .. } = &mut self.sequences[index];
        let position = self.random.below(words.len() + 2);
        let expected = (position / BLOCK_SIZE).saturating_sub(*first_block);
        match table.release_before(position) {
            Ok(released) => {
                assert_eq!(released, expected);
                blocks.drain(..released).for_each(|block| self.places[*place].model.leave_behind(block));
                *first_block += released;
                assert_eq!(table.release_before(position).ok(), Some(0), "nothing is released twice");
            }
            Err(_) => assert!(position > words.len()),
        }
    }

    fn publish(&mut self, index: usize) {
        let Sequence { place, table, salt, words, contents, blocks, first_block } = &mut self.sequences[index];
        let model = &mut self.places[*place].model;
        // Now and then fewer words than the table has tokens, or more.
        let mut given = words.clone();
        match self.random.below(8) {
            0 => given.truncate(self.random.below(words.len() + 1)),
            1 => given.extend([9; 9]),
            _ => {}
        }
        let full = given.len().min(words.len()) / BLOCK_SIZE;
        let mut published = 0;
        while published < full {
            let key = Key::of(*salt, contents, published);
            let held = published.checked_sub(*first_block).map(|held| &mut blocks[held]);
            let is_free = |held: &BlockId| model.blocks[held.0 as usize].key.is_none();
            match (model.find(&key), model.is_remembered(&key), held) {
                (Some(found), _, Some(held)) if found != *held => {
                    model.retain(found);
                    model.release(std::mem::replace(held, found));
                    self.exchanged += 1;
                }
                (Some(_), ..) | (None, true, None) => {}
                (None, _, Some(held)) if is_free(held) => model.bring_back(key, *held),
                (None, false, None) if model.remember(key) => {}
                _ => break,
            }
            published += 1;
        }
        model.forget();
        let is_known = |key: &Key| model.find(key).is_some() || model.is_remembered(key);
        while published > 0 && !is_known(&Key::of(*salt, contents, published - 1)) {
            published -= 1;
        }
        assert_eq!(table.publish(*salt, &given).expect("whole tokens"), published * BLOCK_SIZE);
    }

    fn swap(&mut self, index: usize) {
        let sequence = &mut self.sequences[index];
        // Now and then to where it is.
        let (from, to) = (sequence.place, sequence.place ^ usize::from(self.random.below(8) != 0));
        let Place { pool, model, .. } = &mut self.places[to];
        let before = pool.stats();
        match sequence.table.swap_to(pool) {
            Ok(swap) => {
                let old = std::mem::take(&mut sequence.blocks);
                for _ in &old {
                    let block = model.allocate();
                    model.retain(block);
                    sequence.blocks.push(block);
                }
                let copies: Vec<_> = old.into_iter().zip(sequence.blocks.iter().copied()).collect();
                assert_eq!(swap.copies(), copies);
                sequence.place = to;
                self.copies.push_back(Copy::Swap(from, to, swap));
                self.swapped += 1;
            }
            Err(Error::OutOfBlocks { asked, free, .. }) => {
                assert_eq!((asked, free), (sequence.blocks.len(), model.available()));
                assert!(asked > free);
                assert_eq!(pool.stats(), before, "a refusal changes nothing");
                self.refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A swap to where some of the sequence may be found, which is not copied then.
    fn swap_behind(&mut self, index: usize) {
        let Sequence { place: from, salt, ref words, ref contents, .. } = self.sequences[index];
        let (words, contents) = (words.clone(), contents.clone());
        let to = from ^ usize::from(self.random.below(8) != 0);
        let (start, unseen, mut found) = self.start(to, salt, &words, &contents);
        let before = self.places[from].pool.stats();
        let sequence = &mut self.sequences[index];
        let swapped = sequence.table.swapped(start);
        // It lets go of what the sequence has released, also where the rest does not fit.
        let first = sequence.first_block;
        let known = unseen + found.len();
        let released = first.min(known).saturating_sub(unseen);
        let model = &mut self.places[to].model;
        found.drain(..released).for_each(|block| model.leave_behind(block));
        let has = unseen.max(first)..known.max(first);
        let is_moved = |block: &usize| !has.contains(block);
        let moved: Vec<usize> = (first..first + sequence.blocks.len()).filter(is_moved).collect();
        match swapped {
            Ok((table, swap)) => {
                let mut blocks = found;
                let mut copies = Vec::new();
                for block in moved {
                    let (from, to) = (sequence.blocks[block - first], model.allocate());
                    model.retain(to);
                    blocks.insert(block - first, to);
                    copies.push((from, to));
                }
                assert_eq!(swap.copies(), copies);
                let old = std::mem::replace(&mut sequence.blocks, blocks);
                self.gone_on += usize::from(copies.len() < old.len());
                // The table that was is dropped once this one is made.
                drop(std::mem::replace(&mut sequence.table, table));
                sequence.place = to;
                let model = &mut self.places[from].model;
                copies.iter().for_each(|copy| model.retain(copy.0));
                old.into_iter().rev().for_each(|block| model.release(block));
                self.copies.push_back(Copy::Swap(from, to, swap));
                self.swapped += 1;
            }
            Err(Error::OutOfBlocks { asked, free, .. }) => {
                assert_eq!((asked, free), (moved.len(), model.available()));
                assert!(asked > free);
                found.into_iter().rev().for_each(|block| model.release(block));
                assert!(to == from || self.places[from].pool.stats() == before, "a refusal changes nothing");
                self.refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Takes back an append whose copy still waits, where nothing else has what was to be written then.
    fn take_back(&mut self, index: usize) {
        let waiting = self.random.below(self.copies.len());
        let Some(&Copy::Block(place, ref copy)) = self.copies.get(waiting) else { return };
        let (from, to, tokens) = (copy.from(), copy.to(), copy.tokens());
        let model = &mut self.places[place].model;
        let is_of = |sequence: &Sequence| sequence.place == place && sequence.blocks.contains(&to);
        let owner = self.sequences.iter().position(is_of);
        let kept = owner.map_or(0, |owner| {
            let Sequence { blocks, first_block, .. } = &self.sequences[owner];
            let at = blocks.iter().position(|&block| block == to).expect("its own");
            (first_block + at) * BLOCK_SIZE + tokens
        });
        let block = model.blocks[to.0 as usize];
        let is_alone = block.key.is_none() && block.references == 1 + u32::from(owner.is_some());
        if !is_alone || owner.is_some_and(|owner| self.sequences[owner].words.len() < kept) {
            return;
        }
        let Some(Copy::Block(_, copy)) = self.copies.remove(waiting) else { unreachable!("found above") };
        let Sequence { table, words, contents, blocks, first_block, .. } = &mut self.sequences[owner.unwrap_or(index)];
        assert_eq!(table.take_back(copy).is_ok(), owner.is_some());
        if owner.is_some() {
            words.truncate(kept);
            contents.truncate(kept);
            blocks.drain(kept.div_ceil(BLOCK_SIZE) - *first_block..).rev().for_each(|block| model.release(block));
            *blocks.last_mut().expect("half-filled") = from;
            model.retain(from);
            model.release(to);
            self.taken_back += 1;
        }
        model.release(from);
        model.release(to);
    }

    fn drop_sequence(&mut self, index: usize) {
        let Sequence { place, blocks, table, .. } = self.sequences.swap_remove(index);
        drop(table);
        blocks.into_iter().rev().for_each(|block| self.places[place].model.release(block));
    }

    fn clear_table(&mut self, index: usize) {
        let Sequence { place, table, words, contents, blocks, first_block, .. } = &mut self.sequences[index];
        table.clear();
        blocks.drain(..).rev().for_each(|block| self.places[*place].model.release(block));
        words.clear();
        contents.clear();
        *first_block = 0;
    }

    /// Makes the copy that has waited longest.
    fn copy_first(&mut self) {
        match self.copies.pop_front() {
            Some(Copy::Block(place, copy)) => {
                let Place { slots, model, .. } = &mut self.places[place];
                let from = at(copy.from(), 0);
                slots.copy_within(from..from + copy.tokens(), at(copy.to(), 0));
                model.release(copy.from());
                model.release(copy.to());
            }
            Some(Copy::Swap(from, to, swap)) => {
                for &(read, write) in swap.copies() {
                    for slot in 0..BLOCK_SIZE {
                        self.places[to].slots[at(write, slot)] = self.places[from].slots[at(read, slot)];
                    }
                }
                swap.copies().iter().rev().for_each(|copy| self.places[from].model.release(copy.0));
                swap.copies().iter().rev().for_each(|copy| self.places[to].model.release(copy.1));
            }
            None => {}
        }
    }

    fn take_by_hand(&mut self) {
        let Place { pool, model, by_hand, .. } = &mut self.places[self.random.below(2)];
        let used = BlockId(self.random.below(model.blocks.len()) as u32);
        if self.random.below(2) == 0 {
            let is_used = model.blocks[used.0 as usize].references > 0;
            assert_eq!(pool.retain(used).is_ok(), is_used);
            if is_used {
                model.retain(used);
                by_hand.push(used);
            }
        } else if model.available() == 0 {
            assert!(matches!(pool.allocate(), Err(Error::OutOfBlocks { asked: 1, free: 0, .. })));
        } else {
            let block = model.allocate();
            assert_eq!(pool.allocate().ok(), Some(block), "the lowest free block comes first");
            by_hand.push(block);
        }
    }

    fn give_back_by_hand(&mut self) {
        for Place { pool, model, by_hand, .. } in &mut self.places {
            for block in by_hand.drain(..) {
                model.release(block);
                let last = model.blocks[block.0 as usize].references == 0;
                assert_eq!(pool.release(block).ok(), Some(last));
            }
        }
    }

    fn evict(&mut self) {
        let Place { pool, model, .. } = &mut self.places[self.random.below(2)];
        let asked = self.random.below(4);
        let mut expected = 0;
        while expected < asked {
            match model.evict() {
                0 => break,
                evicted => expected += evicted,
            }
        }
        assert_eq!(pool.evict(asked), expected);
    }

    fn clear_prefixes(&mut self) {
        let Place { pool, model, .. } = &mut self.places[self.random.below(2)];
        model.blocks.iter_mut().for_each(|block| block.key = None);
        model.remembered.clear();
        pool.clear_prefixes();
    }

    /// The counts of both pools.
    fn assert_counts(&self) {
        for (index, Place { pool, model, .. }) in self.places.iter().enumerate() {
            let mut tables = PageStats::default();
            for Sequence { words, blocks, first_block, .. } in self.sequences.iter().filter(|s| s.place == index) {
                tables.tables += 1;
                tables.table_tokens += (words.len() - first_block * BLOCK_SIZE) as u64;
                tables.table_slots += (blocks.len() * BLOCK_SIZE) as u64;
            }
            let stats = pool.stats();
            assert_eq!(stats, model.stats(tables));
            assert_eq!(stats.used + stats.cached + stats.free, stats.total);
            assert_eq!((pool.free_blocks(), pool.available_blocks()), (stats.free, stats.available()));
        }
    }

    /// Every reference of every block, and every table.
    fn assert_references(&self) {
        let mut references = self.places.each_ref().map(|place| vec![0; place.model.blocks.len()]);
        let mut count = |place: usize, block: BlockId| references[place][block.0 as usize] += 1;
        for Sequence { place, table, words, blocks, first_block, .. } in &self.sequences {
            assert_eq!(table.blocks(), blocks);
            assert_eq!((table.first_block(), table.num_tokens()), (*first_block, words.len()));
            blocks.iter().for_each(|&block| count(*place, block));
        }
        for copy in &self.copies {
            match copy {
                Copy::Block(place, copy) => [copy.from(), copy.to()].map(|block| count(*place, block)),
                Copy::Swap(from, to, swap) => {
                    let sides = |&(read, write): &_| (count(*from, read), count(*to, write));
                    swap.copies().iter().map(sides).for_each(drop);
                    [(); 2]
                }
            };
        }
        for (index, place) in self.places.iter().enumerate() {
            place.by_hand.iter().for_each(|&block| count(index, block));
        }
        for (Place { pool, model, .. }, references) in self.places.iter().zip(references) {
            for ((block, expected), number) in model.blocks.iter().zip(references).zip(0..) {
                assert_eq!(block.references, expected, "the model's references of block {number}");
                assert_eq!(pool.references(BlockId(number)), expected, "references of block {number}");
            }
        }
    }

    /// What tables and published blocks hold, once all copies are made. What nobody holds is poisoned.
    fn assert_contents(&mut self) {
        while !self.copies.is_empty() {
            self.copy_first();
        }
        for Place { slots, model, .. } in &mut self.places {
            for (block, slots) in model.blocks.iter().zip(slots.chunks_exact_mut(BLOCK_SIZE)) {
                if let Some(key) = block.key {
                    assert_eq!(slots, key.contents, "a published block");
                } else if block.is_free() {
                    slots.fill(POISON);
                }
            }
        }
        for Sequence { place, table, contents, .. } in &self.sequences {
            let held = table.positions();
            assert!(held.start == 0 || table.slot(held.start - 1).is_none());
            assert_eq!(table.slot(held.end), None);
            for position in held {
                let (block, slot) = table.slot(position).expect("held");
                let found = self.places[*place].slots[at(block, slot)];
                assert_eq!(found, contents[position], "token {position} of {table:?}");
            }
        }
    }
}

fn run(seed: u64, operations: usize, prefixes: PrefixConfig) {
    let mut world = World::new(seed, prefixes);
    let start = Instant::now();
    for operation in 0..operations {
        world.operation();
        world.assert_counts();
        world.assert_references();
        if operation.is_multiple_of(64) {
            world.assert_contents();
        }
    }
    world.assert_references();
    world.assert_contents();
    let seconds = start.elapsed().as_secs_f64();
    let [device, _] = world.places.each_ref().map(|place| place.pool.stats());
    let World { copied, refused, swapped, exchanged, taken_back, gone_on, .. } = world;
    println!("pages: {operations} operations in {seconds:.1} s, every count, reference and token as in the model");
    println!(
        "pages: {copied} copies on write, {swapped} swaps, {refused} refused, {exchanged} exchanged for published ones"
    );
    for (name, place) in ["device", "host"].into_iter().zip(&world.places) {
        let PageStats { total, peak_used, hits, evictions, .. } = place.pool.stats();
        let (rate, Model { cut, kept, bridged, .. }) = (100.0 * place.pool.stats().hit_rate(), &place.model);
        println!(
            "pages: {name}: at most {peak_used} of {total} used, {hits} hits ({rate:.1} %), {evictions} evictions, {cut} cut off, \
             {kept} remembered, {bridged} found past such"
        );
    }
    let device_model = &world.places[0].model;
    let &Model { kept, bridged, lacked, left_behind, .. } = device_model;
    let remembers = prefixes.remembered > 0;
    assert_eq!([kept, bridged, lacked].map(|count| count > 0), [remembers; 3], "the test has lost its point");
    for (what, count) in [
        ("copies", copied),
        ("swaps", swapped),
        ("refusals", refused),
        ("exchanges", exchanged),
        ("appends taken back", taken_back),
        ("swaps behind what was found", gone_on),
        ("evictions of what was left behind", left_behind),
    ] {
        assert!(count > 0, "no {what}: the test has lost its point");
    }
    assert!(
        (device_model.cut > 0 || prefixes.remembered > 6) && device.hits > 0 && device.evictions > 0,
        "the test has lost its point"
    );
    assert_eq!(device.peak_used, device.total, "the pool was never full: the test has lost its point");

    while !world.sequences.is_empty() {
        world.drop_sequence(0);
    }
    world.give_back_by_hand();
    world.assert_counts();
    for Place { pool, .. } in &world.places {
        let stats = pool.stats();
        assert_eq!((stats.used, stats.references, stats.tables, stats.table_slots), (0, 0, 0, 0));
        pool.clear_prefixes();
        assert_eq!((pool.stats().free, pool.stats().published), (pool.stats().total, 0));
    }
}

#[test]
fn random_operations_do_what_the_model_does() {
    run(3, operations(100_000), PrefixConfig::default());
}

#[test]
fn random_operations_do_what_the_model_does_where_words_outlive_their_blocks() {
    // Once with room for most of them, once with so little that chains are cut.
    for (seed, remembered) in [(5, 200), (6, 6)] {
        run(seed, operations(100_000) / 2, PrefixConfig { remembered, ..PrefixConfig::default() });
    }
}

#[test]
fn random_operations_do_what_the_model_does_when_all_hashes_collide() {
    for (seed, remembered) in [(4, 0), (7, 30)] {
        run(seed, operations(100_000) / 8, PrefixConfig { remembered, hash: |_, _| 7, ..PrefixConfig::default() });
    }
}
