//! Whose turn it is: ranks, shares of a step, and who makes room.

use super::*;

#[test]
fn a_higher_priority_overtakes_but_not_for_ever() {
    let mut engine = small(1, 1024);
    for _ in 0..3 {
        engine.submit(asked(20, 4)).expect("a valid request");
    }
    engine.submit(Request { priority: 1, ..asked(20, 4) }).expect("a valid request");
    assert_eq!(run(&mut engine).iter().map(|end| end.0).collect::<Vec<_>>(), [3, 0, 1, 2]);

    let options = LoadOptions { max_sequences: 1, ..LoadOptions::default() };
    let mut engine =
        Engine::new(model(1, DType::F32, options), EngineOptions { patience: 10, ..EngineOptions::default() });
    engine.submit(asked(5, 2)).expect("a valid request");
    engine.submit(asked(6, 2)).expect("a valid request");
    let mut order = Vec::new();
    for step in 0..60 {
        // An endless row of requests of a higher priority.
        if step % 2 == 0 {
            engine.submit(Request { priority: 1, ..asked(7, 2) }).expect("a valid request");
        }
        order.extend(engine.step().expect("a step").iter().filter(|event| event.is_last()).map(number));
    }
    assert!(order.contains(&0) && order.contains(&1), "{order:?}");
}

#[test]
fn short_prompts_do_not_wait_for_a_long_one() {
    let options = LoadOptions { max_sequences: 4, prefill_chunk: 16, ..LoadOptions::default() };
    let mut engine = Engine::new(model(1, DType::F32, options), EngineOptions::default());
    engine.submit(asked(200, 2)).expect("a valid request");
    engine.submit(asked(8, 2)).expect("a valid request");
    assert_eq!(run(&mut engine).first().map(|end| end.0), Some(1));
}

#[test]
fn a_full_queue_refuses() {
    let options = LoadOptions { max_sequences: 1, ..LoadOptions::default() };
    let mut engine =
        Engine::new(model(1, DType::F32, options), EngineOptions { max_waiting: 2, ..EngineOptions::default() });
    engine.submit(asked(5, 2)).expect("a valid request");
    engine.submit(asked(5, 2)).expect("a valid request");
    let error = engine.submit(asked(5, 2)).expect_err("two wait");
    assert!(matches!(error, Error::Busy { waiting: 2 }), "{error}");
    for wrong in [Request { samples: 2, ..asked(5, 2) }, asked(0, 2), Request::new(vec![1003]), asked(3000, 2)] {
        assert!(!matches!(engine.submit(wrong), Ok(_) | Err(Error::Busy { .. })));
    }
    assert_eq!(run(&mut engine).len(), 2);
}

#[test]
fn answers_that_end_without_a_step_are_not_piled_up() {
    let options = LoadOptions { max_sequences: 2, ..LoadOptions::default() };
    let mut engine =
        Engine::new(model(1, DType::F32, options), EngineOptions { max_waiting: 3, ..EngineOptions::default() });
    let (mut taken, mut told) = (0, 0);
    for turn in 0..3 {
        // Nothing is asked of the one, and the other is not waited for.
        loop {
            let request = Request { samples: 2, ..asked(5, taken % 2) };
            match engine.submit(request) {
                Ok(id) => {
                    taken += 1;
                    if engine.stats().waiting > 0 {
                        assert!(engine.cancel(id));
                    }
                }
                Err(Error::Busy { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            assert!(taken < 100, "turn {turn}: there is no end to it");
        }
        assert!(!engine.is_idle());
        told += engine.step().expect("a step").len();
        assert_eq!((told, engine.stats().waiting), (2 * taken, 0), "turn {turn}");
    }
    assert!(taken >= 3 * 4, "{taken}");
}

/// The step in which each request has its first token, and that in which it ends.
fn steps_of(engine: &mut Engine) -> HashMap<u64, (usize, usize)> {
    let mut steps = HashMap::new();
    for step in 1.. {
        if engine.is_idle() {
            break;
        }
        for event in engine.step().expect("a step") {
            assert!(!matches!(event.what, Happening::Failed(_)), "{event:?}");
            steps.entry(number(event)).or_insert((step, step)).1 = step;
        }
    }
    steps
}

#[test]
fn the_first_prompt_has_half_of_a_step_and_short_ones_the_other_half() {
    let options = LoadOptions { max_sequences: 4, prefill_chunk: 16, ..LoadOptions::default() };
    let mut engine = Engine::new(model(1, DType::F32, options), EngineOptions::default());
    engine.submit(asked(64, 1)).expect("a valid request");
    engine.submit(asked(32, 1)).expect("a valid request");
    engine.submit(asked(12, 1)).expect("a valid request");
    let steps = steps_of(&mut engine);
    // The halves are eight tokens: 12 of the third are run before the second's 32, with 4 over; then the first goes on.
    assert_eq!([steps[&2].0, steps[&1].0, steps[&0].0], [2, 6, 7]);
}

#[test]
fn answers_that_grow_make_room_for_a_prompt_that_came_before() {
    // Eight blocks. The prompt is to take six of them, two tokens in a step, but an answer that came after it, for which
    // one would have done at first, has grown to three by then.
    let options = LoadOptions { prefill_chunk: 3, max_sequences: 2, cache_tokens: Some(128), ..LoadOptions::default() };
    let mut engine = Engine::new(model(1, DType::F32, options), EngineOptions::default());
    engine.submit(asked(96, 1)).expect("a valid request");
    engine.submit(asked(5, 42)).expect("a valid request");
    let steps = steps_of(&mut engine);
    assert_eq!(engine.stats().preemptions, 1);
    assert!(steps[&0].1 < steps[&1].1, "{steps:?}");
}

#[test]
fn a_prompt_takes_what_room_there_is() {
    // As above, but who answers came first. The prompt waits for it behind the first of the two tokens of a step.
    let options = LoadOptions { prefill_chunk: 3, max_sequences: 2, cache_tokens: Some(128), ..LoadOptions::default() };
    let mut engine = Engine::new(model(1, DType::F32, options), EngineOptions::default());
    engine.submit(asked(6, 42)).expect("a valid request");
    engine.submit(asked(90, 1)).expect("a valid request");
    let mut before_the_end = 0;
    while engine.stats().finished == 0 {
        before_the_end = engine.stats().prefilled;
        engine.step().expect("a step");
    }
    // All of five blocks.
    assert_eq!(before_the_end, 6 + 80);
    assert_eq!((run(&mut engine).len(), engine.stats().preemptions), (1, 0));

    // A step of more tokens than there are blocks for, of layers that leave them behind.
    let options = LoadOptions { cache_tokens: Some(64), ..LoadOptions::default() };
    let mut engine = Engine::new(fixture(FIXTURES[2], 1, DType::F32, options), EngineOptions::default());
    engine.submit(asked(300, 4)).expect("a valid request");
    assert_eq!(run(&mut engine), [(0, "length".to_owned())]);
}

#[test]
fn who_shares_nothing_waits_for_nobody() {
    let options = LoadOptions { max_sequences: 2, prefill_chunk: 32, ..LoadOptions::default() };
    for (salt, running) in [(0, 1), (1, 2)] {
        let mut engine = Engine::new(model(1, DType::F32, options.clone()), EngineOptions::default());
        engine.submit(asked(64, 2)).expect("a valid request");
        engine.submit(Request { salt, ..asked(64, 2) }).expect("a valid request");
        engine.step().expect("a step");
        assert_eq!(engine.stats().running, running, "salt {salt}");
        assert_eq!(run(&mut engine).len(), 2);
    }
}

#[test]
fn who_waits_for_a_place_is_not_looked_up_before_there_is_one() {
    let mut engine = small(1, 1024);
    let block = engine.cache().shape().groups()[0].layout.block_size();
    engine.submit(asked(4 * block, 2)).expect("a valid request");
    run(&mut engine);
    engine.submit(asked(33, 30)).expect("a valid request");
    engine.step().expect("a step");
    // Of this one all but its end was run before.
    let mut again = asked(4 * block, 2);
    again.prompt.extend(prompt(99, block + 1));
    engine.submit(again).expect("a valid request");
    let before = engine.cache().stats();
    for _ in 0..20 {
        engine.step().expect("a step");
    }
    let waiting = engine.cache().stats();
    assert_eq!(engine.stats().waiting, 1);
    assert_eq!((waiting.hits, waiting.misses), (before.hits, before.misses));
    run(&mut engine);
    let after = engine.cache().stats();
    // The block behind those found was asked for as well.
    assert_eq!((after.hits - before.hits, after.misses - before.misses), (4, 1));
    assert_eq!(engine.stats().found, 4 * block as u64);
}

#[test]
fn as_many_run_as_the_cache_was_made_for() {
    for (len, new) in [(60, 5), (48, 17), (40, 25), (1, 64)] {
        let options = LoadOptions { max_sequences: 8, context: Some(64), ..LoadOptions::default() };
        let mut engine = Engine::new(model(1, DType::F32, options), EngineOptions::default());
        for seed in 0..8 {
            engine.submit(Request { prompt: prompt(seed, len), ..asked(len, new) }).expect("a valid request");
        }
        let mut most = 0;
        while !engine.is_idle() {
            engine.step().expect("a step");
            most = most.max(engine.stats().running);
        }
        assert_eq!((most, engine.stats().preemptions), (8, 0), "{len} tokens, {new} more");
    }
}

#[test]
fn nobody_leaves_for_one_who_would_not_fit_then_either() {
    let options = LoadOptions { max_sequences: 3, cache_tokens: Some(128), ..LoadOptions::default() };
    let mut engine = Engine::new(model(1, DType::F32, options), EngineOptions::default());
    engine.submit(Request { priority: 2, ..asked(20, 25) }).expect("a valid request");
    engine.step().expect("a step");
    let low = asked(70, 8);
    engine.submit(low.clone()).expect("a valid request");
    engine.step().expect("a step");
    // Most of its prompt is what the lowest holds, who would leave nothing but the rest.
    let mut between = low.prompt[..64].to_vec();
    between.extend(prompt(77, 36));
    engine.submit(Request { priority: 1, prompt: between, ..asked(100, 4) }).expect("a valid request");
    for _ in 0..4 {
        engine.step().expect("a step");
    }
    assert_eq!(engine.stats().preemptions, 0, "{:?}", engine.stats());
    assert!(run(&mut engine).iter().all(|(_, end)| end == "length"));
}

#[test]
fn who_stood_back_for_what_another_ran_takes_nobodys_place() {
    // The second waits for what it begins like the first with, and the third has the place beside the first meanwhile.
    let options = LoadOptions { max_sequences: 2, prefill_chunk: 32, ..LoadOptions::default() };
    for (priority, preemptions) in [(0, 0), (1, 1)] {
        let mut engine = Engine::new(model(1, DType::F32, options.clone()), EngineOptions::default());
        let of =
            |own, priority| Request { prompt: [prompt(1, 200), prompt(own, 60)].concat(), priority, ..asked(1, 20) };
        engine.submit(of(2, priority)).expect("a valid request");
        engine.submit(of(3, priority)).expect("a valid request");
        engine.submit(asked(250, 20)).expect("a valid request");
        assert_eq!(run(&mut engine).len(), 3);
        assert_eq!(engine.stats().preemptions, preemptions, "priority {priority}");
    }
}
