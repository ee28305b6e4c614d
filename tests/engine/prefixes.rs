//! What begins alike is run once and held once.

use super::*;

#[test]
fn a_prompt_is_held_once_for_all_its_answers() {
    let mut engine = small(4, 1024);
    let mut request = asked(160, 8);
    request.samples = 4;
    request.options.sampling.temperature = 1.5;
    engine.submit(request).expect("a valid request");
    let mut most = 0;
    while !engine.is_idle() {
        engine.step().expect("a step");
        most = most.max(engine.cache().stats().used);
    }
    // Ten blocks of prompt, and one of its own for each answer.
    assert_eq!(most, 10 + 4);
    assert_eq!(engine.stats().prefilled, 160);
}

#[test]
fn what_begins_alike_is_run_and_held_once() {
    const PREFIX: usize = 1000;
    // Whole blocks are shared, and what is left of the prefix is not.
    const SHARED: usize = PREFIX / 16 * 16;
    for (name, windows) in [(FIXTURES[0], false), (FIXTURES[1], true)] {
        // Sixty-four of them at once, or after one that has ended; or of another user, who shares nothing.
        for (first_alone, salt) in [(false, 0), (true, 0), (true, 1)] {
            let options = LoadOptions { max_sequences: 64, cache_tokens: Some(4096), ..LoadOptions::default() };
            let mut engine = Engine::new(fixture(name, 2, DType::F32, options), EngineOptions::default());
            let request = |i: usize, salt| {
                let mut request = asked(PREFIX, 12);
                request.prompt.extend(prompt(7 + i as u32, 9));
                Request { salt, ..request }
            };
            if first_alone {
                engine.submit(request(64, 0)).expect("a valid request");
                run(&mut engine);
            }
            let before = engine.stats();
            for i in 0..64 {
                engine.submit(request(i, salt)).expect("a valid request");
            }
            let mut most = 0;
            while !engine.is_idle() {
                engine.step().expect("a step");
                most = most.max(engine.cache().stats().used);
            }
            // A window sees one more block at the end of the prefix.
            let once = SHARED / 16 + 64 * 2;
            match windows {
                false => assert_eq!(most, once),
                true => assert!((once..=once + 1 + 64 * 2).contains(&most), "{most}"),
            }
            let done = engine.stats().since(&before);
            let alone = if first_alone && salt == 0 { 64 } else { 63 };
            assert_eq!((done.finished, done.found), (64, (alone * SHARED) as u64), "{name}");
            assert_eq!(done.prefilled, (64 * (PREFIX + 9) - alone * SHARED) as u64, "{name}");
        }
    }
}

#[test]
fn what_a_window_sees_of_a_prefix_is_found_with_the_same_bits_though_the_rest_is_gone() {
    for (name, kv) in FIXTURES[1..].iter().flat_map(|&name| [None, Some(DType::I8)].map(|kv| (name, kv))) {
        // Blocks for what windows see and a step adds, and no more: what is behind is evicted as the first prompt is run.
        let usual = LoadOptions { kv, ..LoadOptions::default() };
        let options = LoadOptions { prefill_chunk: 16, block_size: 8, cache_tokens: Some(512), ..usual.clone() };
        let mut engine = Engine::new(fixture(name, 2, DType::F32, options), EngineOptions::default());
        let mut solo = fixture(name, 2, DType::F32, usual);
        let mut answers = Answers::new();
        for (i, (same, other, found)) in
            [(200, 0, 0), (200, 0, 192), (200, 9, 200), (100, 30, 0)].into_iter().enumerate()
        {
            let mut request = asked(same, 9);
            request.options.logprobs = Some(2);
            request.prompt = prompt(1, same);
            request.prompt.extend(prompt(2, other));
            let before = engine.stats();
            engine.submit(request.clone()).expect("a valid request");
            while !engine.is_idle() {
                engine.step().expect("a step").iter().for_each(|event| hear(&mut answers, event));
            }
            let (done, cache) = (engine.stats().since(&before), engine.cache().stats());
            // In the middle of the first prompt nothing is left that a window would see.
            assert_eq!(done.found, found, "{name} {kv:?} {i}: {cache:?}");
            assert!(cache.remembered > 5, "{name}: {cache:?}");
            assert!(answers[&(i as u64, 0)] == alone(&mut solo, &request, 0), "{name} {kv:?} {i}");
        }
    }
}

#[test]
fn what_others_hold_of_a_swapped_sequence_is_neither_copied_nor_run_again() {
    // Three answers to prompts that begin alike: together they outgrow the cache, and have what they share in it once.
    for name in [FIXTURES[0], FIXTURES[1]] {
        let options =
            LoadOptions { max_sequences: 3, cache_tokens: Some(160), swap_tokens: 512, ..LoadOptions::default() };
        let mut engine = Engine::new(fixture(name, 2, DType::F32, options), EngineOptions::default());
        let mut solo = fixture(name, 2, DType::F32, LoadOptions::default());
        let requests = [3, 4, 5].map(|seed| {
            let mut request = asked(48, 60);
            request.options.logprobs = Some(2);
            request.prompt.extend(prompt(seed, 5));
            request
        });
        for request in &requests {
            engine.submit(request.clone()).expect("a valid request");
        }
        let mut answers = Answers::new();
        while !engine.is_idle() {
            engine.step().expect("a step").iter().for_each(|event| hear(&mut answers, event));
        }
        let stats = engine.stats();
        assert!(stats.preemptions > 0 && stats.swapped == stats.preemptions, "{name}: {stats:?}");
        assert_eq!((stats.prefilled, stats.found), (3 * 53 - 2 * 48, 2 * 48), "{name}");
        for (i, request) in requests.iter().enumerate() {
            assert!(answers[&(i as u64, 0)] == alone(&mut solo, request, 0), "{name} {i}");
        }
        assert_eq!(engine.cache().stats().used, 0);
    }
}

#[test]
fn a_higher_priority_gets_the_room_of_what_others_share() {
    // Eight blocks. Four are shared by two answers that each have one more; six are wanted.
    let mut engine = small(3, 128);
    for seed in [3, 4] {
        let mut request = asked(64, 14);
        request.prompt.extend(prompt(seed, 2));
        engine.submit(request).expect("a valid request");
    }
    for _ in 0..4 {
        engine.step().expect("a step");
    }
    assert_eq!((engine.stats().running, engine.cache().stats().used), (2, 6));
    engine.submit(Request { priority: 1, ..asked(90, 4) }).expect("a valid request");
    let ends = run(&mut engine);
    assert_eq!(ends.iter().map(|end| end.0).collect::<Vec<_>>(), [2, 0, 1], "{ends:?}");
    assert!(ends.iter().all(|(_, end)| end == "length"), "{ends:?}");
    assert_eq!(engine.stats().preemptions, 2);
}

#[test]
fn a_cache_that_is_smaller_than_a_window_says_so_when_asked() {
    // What a window of seven sees lies in up to three blocks of four.
    for (blocks, room) in [(2, Some(8)), (3, None)] {
        let options = LoadOptions { cache_tokens: Some(4 * blocks), block_size: 4, ..LoadOptions::default() };
        let mut engine = Engine::new(fixture(FIXTURES[2], 1, DType::F32, options), EngineOptions::default());
        let outcome = engine.submit(asked(30, 8)).map_err(|error| error.to_string());
        match room {
            Some(room) => {
                let words = format!("a prompt of 30 tokens; the cache has room for {room}");
                assert_eq!(outcome.expect_err("a small cache"), words);
                engine.submit(asked(3, 4)).expect("it fits");
            }
            None => assert!(outcome.is_ok(), "{outcome:?}"),
        }
        assert_eq!(run(&mut engine), [(0, "length".to_owned())]);
    }
}

#[test]
fn nobody_waits_for_what_has_been_run_and_left_behind() {
    let options = LoadOptions { max_sequences: 2, prefill_chunk: 16, block_size: 8, ..LoadOptions::default() };
    let options = LoadOptions { cache_tokens: Some(1024), ..options };
    let mut engine = Engine::new(fixture(FIXTURES[1], 1, DType::F32, options), EngineOptions::default());
    let of = |len, new| Request { prompt: prompt(1, len), ..asked(1, new) };
    engine.submit(of(600, 2)).expect("a valid request");
    for _ in 0..20 {
        engine.step().expect("a step");
    }
    // It begins alike, and of what a window would see behind that nothing is left.
    engine.submit(Request { prompt: [prompt(1, 100), prompt(2, 9)].concat(), ..asked(1, 2) }).expect("a valid request");
    engine.step().expect("a step");
    assert_eq!((engine.stats().running, engine.stats().found), (2, 0));
    assert_eq!(run(&mut engine).len(), 2);
}

#[test]
fn what_a_request_finds_of_its_own_is_no_hit() {
    // As many as make room for each other, and nothing that begins alike.
    let mut engine = small(3, 128);
    let line = |number: usize| TraceLine {
        arrival_s: 0.0,
        prompt_tokens: 30 + number,
        new_tokens: 60,
        prefix: 0,
        prefix_tokens: 0,
    };
    let go_on = &mut || ControlFlow::Continue(());
    let replayed = engine.replay(&[line(0), line(1), line(2)], 1.0, go_on).expect("it runs");
    let stats = replayed.engine;
    assert!(stats.preemptions > 0 && stats.found_again > 0, "{stats:?}");
    assert_eq!((stats.prompted, stats.found, stats.hit_rate()), (30 + 31 + 32, 0, 0.0));
}

/// Requests that begin alike in turns, with `rest` tokens of their own behind that, and prompts between them that begin like
/// nothing: how much of each is found.
fn found_in_turns(name: &str, options: LoadOptions, prefixes: u32, rest: usize) -> Vec<u64> {
    const PREFIX: usize = 400;
    let mut engine = Engine::new(fixture(name, 2, DType::F32, options), EngineOptions::default());
    let mut found = Vec::new();
    for turn in 0..4 {
        let before = engine.stats();
        for prefix in 0..prefixes {
            let own = 100 + 20 * turn + prefix;
            let mut request = asked(1, 3);
            request.prompt = [prompt(prefix, PREFIX), prompt(own, rest)].concat();
            engine.submit(request).expect("a valid request");
            engine.submit(Request { prompt: prompt(own + 100, 300), ..asked(1, 3) }).expect("a valid request");
            run(&mut engine);
        }
        found.push(engine.stats().since(&before).found / u64::from(prefixes));
    }
    found
}

#[test]
fn prefixes_in_turn_are_found_also_where_windows_have_passed_their_ends() {
    // A window is several blocks long, as those of models are.
    let options = LoadOptions { max_sequences: 2, cache_tokens: Some(32_768), block_size: 4, ..LoadOptions::default() };
    let old = LoadOptions { old_kv: Some(OldKv { dtype: DType::I8, recent: 20 }), ..options.clone() };
    // The second that begins so shows what they have in common, and from the third on it is there.
    for (name, options, from) in [
        (FIXTURES[0], options.clone(), 1),
        (FIXTURES[1], options.clone(), 2),
        (FIXTURES[2], options.clone(), 2),
        (FIXTURES[3], options, 2),
        (FIXTURES[0], old, 2),
    ] {
        let found = found_in_turns(name, options, 8, 40);
        assert!(found[from..].iter().all(|&found| found == 400), "{name}: {found:?}");
    }
}

#[test]
fn prefixes_in_turn_are_found_also_where_a_window_is_no_longer_than_a_block() {
    // Where a sequence ends inside a block, the window has left behind all that is published of it.
    let of_blocks = |block_size| {
        let options =
            LoadOptions { max_sequences: 2, cache_tokens: Some(32_768), block_size, ..LoadOptions::default() };
        let old = LoadOptions { old_kv: Some(OldKv { dtype: DType::I8, recent: 1 }), ..options.clone() };
        [(FIXTURES[1], options.clone()), (FIXTURES[2], options.clone()), (FIXTURES[3], options), (FIXTURES[0], old)]
    };
    for block_size in [8, 16, 80] {
        for rest in [10, 37, 45, 60] {
            for (name, options) in of_blocks(block_size) {
                let found = found_in_turns(name, options, 8, rest);
                assert!(found[2..].iter().all(|&found| found == 400), "{name}, {block_size}, {rest}: {found:?}");
            }
        }
    }
}

#[test]
fn more_sequences_and_longer_ones_never_take_less() {
    for name in FIXTURES {
        for tokens in [None, Some(700), Some(5000), Some(40_000)] {
            let bytes = |max_sequences, context| {
                let options = LoadOptions { max_sequences, context: Some(context), ..LoadOptions::default() };
                let folder = Folder::new(fixtures::fixture_path(name));
                let config = folder.config().expect("valid").as_decoder().expect("a decoder").clone();
                let checkpoint = folder.checkpoint(Load::Mmap).expect("the fixture opens");
                let options = LoadOptions { cache_tokens: tokens, ..options };
                LanguageModel::plan(&config, &checkpoint, &options, &Context::cpu().expect("a context"))
                    .expect("a plan")
                    .cache
            };
            for (sequences, context) in [(1, 64), (3, 100), (7, 250)] {
                let here = bytes(sequences, context);
                assert!(
                    bytes(sequences + 1, context) >= here && bytes(sequences, context + 5) >= here,
                    "{name} {tokens:?}"
                );
            }
        }
    }
}
