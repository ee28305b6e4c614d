//! What goes wrong, and who goes away: nothing is left of them, and the others do not notice.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn cancelled_requests_leave_nothing() {
    let mut engine = small(2, 1024);
    let ids: Vec<_> = (0..4).map(|i| engine.submit(asked(30 + i, 50)).expect("a valid request")).collect();
    for _ in 0..3 {
        engine.step().expect("a step");
    }
    // One that runs, one that waits; and once more.
    for id in [ids[0], ids[3]] {
        assert!(engine.cancel(id));
        assert!(!engine.cancel(id));
    }
    let ends = run(&mut engine);
    let of = |id: u64| ends.iter().filter(|end| end.0 == id).map(|end| end.1.as_str()).collect::<Vec<_>>();
    assert_eq!([of(0), of(1), of(2), of(3)], [["cancelled"], ["length"], ["length"], ["cancelled"]]);
    assert_eq!(engine.cache().stats().used, 0);
}

#[test]
fn a_thread_serves_many_and_hears_who_has_gone() {
    let expected = {
        let mut solo = model(2, DType::BF16, LoadOptions::default());
        (0..6).map(|i| alone(&mut solo, &asked(20 + i, 12), 0).tokens).collect::<Vec<_>>()
    };
    let options = LoadOptions { max_sequences: 4, ..LoadOptions::default() };
    let engine = Engine::new(model(2, DType::BF16, options), EngineOptions::default());
    let handle = EngineHandle::start(engine).expect("a thread");
    std::thread::scope(|scope| {
        for (i, expected) in expected.iter().enumerate() {
            let handle = &handle;
            scope.spawn(move || {
                let answers = handle.submit(asked(20 + i, 12)).expect("a valid request");
                let tokens: Vec<u32> = answers
                    .filter_map(|event| match event.what {
                        Happening::Token { token, .. } => Some(token),
                        _ => None,
                    })
                    .collect();
                assert_eq!(&tokens, expected);
            });
        }
        // One that is dropped at once, and one that is cancelled.
        drop(handle.submit(asked(40, 200)).expect("a valid request"));
        let answers = handle.submit(asked(41, 200)).expect("a valid request");
        answers.cancel();
        let last = answers.last().expect("it ends");
        assert!(matches!(last.what, Happening::Finished { finish: Finish::Cancelled, .. }), "{last:?}");
    });
    assert!(handle.submit(Request::new(Vec::new())).is_err());
    let engine = handle.finish().expect("the thread ends");
    assert!(engine.is_idle());
    assert_eq!(engine.stats().finished, 8);
    assert_eq!(engine.cache().stats().used, 0);
}

#[test]
fn an_answer_that_fills_the_whole_cache_says_so_and_the_others_go_on() {
    let mut engine = small(2, 64);
    engine.submit(asked(20, 100)).expect("its prompt fits");
    engine.submit(asked(10, 5)).expect("a valid request");
    let mut ends = run(&mut engine);
    ends.sort();
    assert_eq!(ends[0].0, 0);
    assert!(ends[0].1.contains("the cache of 64 tokens is full"), "{ends:?}");
    assert_eq!(ends[1], (1, "length".to_owned()));
    let error = engine.submit(asked(65, 5)).expect_err("a prompt larger than the cache");
    assert_eq!(error.to_string(), "a prompt of 65 tokens; the cache has room for 64");
}

#[test]
fn an_answer_that_fills_the_whole_cache_and_is_outranked_ends_as_well() {
    let mut engine = small(2, 64);
    engine.submit(asked(20, 100)).expect("its prompt fits");
    while engine.cache().stats().table_tokens < 64 {
        engine.step().expect("a step");
    }
    // What it leaves behind is found again in part, and there is no room for the rest.
    engine.submit(Request { priority: 1, ..asked(5, 2) }).expect("a valid request");
    let mut ends = Vec::new();
    for _ in 0..1000 {
        ends.extend(engine.step().expect("a step").iter().filter(|event| event.is_last()).map(|event| event.request));
    }
    assert!(engine.is_idle() && ends.len() == 2, "{ends:?}");
    assert_eq!(engine.cache().stats().used, 0);
}

#[test]
fn a_sequence_of_another_model_is_refused() {
    let mut models = [0, 1].map(|_| model(1, DType::F32, LoadOptions::default()));
    let mut sequences = models.each_ref().map(|model| model.sequence());
    for ((model, sequence), seed) in models.iter_mut().zip(&mut sequences).zip(1..) {
        model.prefill(sequence, &prompt(seed, 9)).expect("there is room");
    }
    let before = sequences[0].len();
    assert!(matches!(models[1].prefill(&mut sequences[0], &[1]), Err(Error::Input(_))));
    assert!(matches!(models[1].decode(&mut sequences[..1], &[1]), Err(Error::Input(_))));
    assert_eq!(sequences[0].len(), before);
    models[0].decode(&mut sequences[..1], &[1]).expect("its own model still runs it");
}

/// A model behind a gate, with its context.
fn gated(gate: gate::Gate, options: LoadOptions) -> LanguageModel {
    let device = Cpu::with(1, SimdLevel::detected()).expect("threads start");
    let ctx = Context::new(device, Arc::new(gate::registry()), gate::policy()).expect("a context");
    gate::set(&ctx, gate);
    let model = fixture_on(Arc::new(ctx), FIXTURES[0], DType::F32, options);
    let (_, rows) = &model.decoder().kernels()[0];
    assert_eq!(rows, &[gate::ROW], "the gate is not in its way");
    model
}

#[test]
fn a_step_that_failed_is_tried_again_as_if_it_had_not_been() {
    let options = LoadOptions { max_sequences: 3, prefill_chunk: 16, ..LoadOptions::default() };
    let mut solo = model(1, DType::F32, LoadOptions::default());
    let steps = Arc::new(AtomicUsize::new(0));
    let of_gate = steps.clone();
    // Every third fails: steps of prompts, of answers and of both.
    let gate: gate::Gate = Arc::new(move || of_gate.fetch_add(1, Ordering::Relaxed) % 3 == 1);
    let mut engine = Engine::new(gated(gate, options), EngineOptions::default());
    let mut requests = [asked(40, 12), asked(9, 20), asked(23, 7)];
    requests[2].samples = 2;
    for request in &mut requests {
        request.options.logprobs = Some(2);
        engine.submit(request.clone()).expect("a valid request");
    }
    let (mut answers, mut failed) = (Answers::new(), 0);
    while !engine.is_idle() {
        let (before, held) = (engine.stats(), engine.cache().stats().table_tokens);
        match engine.step() {
            Ok(events) => events.iter().for_each(|event| hear(&mut answers, event)),
            Err(error) => {
                assert!(error.to_string().contains("the test wants it to fail"), "{error}");
                failed += 1;
                // Who was let in stays; nothing else has changed.
                let now = engine.stats();
                assert_eq!((now.prefilled, now.decoded, now.steps), (before.prefilled, before.decoded, before.steps));
                assert_eq!(engine.cache().stats().table_tokens, held + now.found - before.found, "nobody made room");
            }
        }
    }
    assert!(failed > 5, "{failed}");
    for (i, request) in requests.iter().enumerate() {
        for sample in 0..request.samples {
            assert_eq!(answers[&(i as u64, sample)], alone(&mut solo, request, sample), "{i} {sample}");
        }
    }
    assert_eq!(engine.cache().stats().used, 0);
}

#[test]
fn a_thread_tells_its_clients_of_a_failed_step_and_goes_on() {
    let fails = Arc::new(AtomicBool::new(true));
    let of_gate = fails.clone();
    let gate: gate::Gate = Arc::new(move || of_gate.swap(false, Ordering::Relaxed));
    let engine = Engine::new(gated(gate, LoadOptions::default()), EngineOptions::default());
    let handle = EngineHandle::start(engine).expect("a thread");
    let failed = handle.submit(asked(20, 5)).expect("a valid request");
    // Nothing waits for an answer that does not come: what the thread has said is there when it has ended.
    let served = loop {
        if !fails.load(Ordering::Relaxed) {
            break handle.submit(asked(21, 5)).expect("a valid request");
        }
        std::thread::yield_now();
    };
    let engine = handle.finish().expect("the thread ends");
    let failed: Vec<Event> = failed.collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    let Happening::Failed(error) = &failed[0].what else { panic!("{failed:?}") };
    assert!(error.to_string().contains("the test wants it to fail"), "{error}");
    let served = served.last().expect("an end");
    assert!(matches!(served.what, Happening::Finished { finish: Finish::Length, .. }), "{served:?}");
    assert_eq!((engine.stats().finished, engine.cache().stats().used), (2, 0));
}

#[test]
fn requests_that_were_taken_are_answered_also_behind_a_step_that_failed_with_all_that_may_wait() {
    const MOST: usize = 2;
    let (running, is_running) = mpsc::channel();
    let (release, released) = mpsc::channel::<bool>();
    let released = Mutex::new(released);
    let gate: gate::Gate = Arc::new(move || {
        // The last steps find nobody who waits for them or tells them what to do.
        let _ = running.send(());
        released.lock().expect("no step panics").recv_timeout(Duration::from_secs(60)).unwrap_or(false)
    });
    let options = EngineOptions { max_waiting: MOST, ..EngineOptions::default() };
    let engine = Engine::new(gated(gate, LoadOptions { max_sequences: 1, ..LoadOptions::default() }), options);
    let handle = EngineHandle::start(engine).expect("a thread");
    let submit = || handle.submit(asked(20, 3)).expect("there is room to wait");
    let mut taken = vec![submit()];
    is_running.recv().expect("it runs");
    taken.extend((0..MOST).map(|_| submit()));
    // After its first step, in which the gate is passed more than once, the thread takes those who wait.
    while handle.stats().steps == 0 {
        release.send(false).expect("a step waits for it");
        is_running.recv().expect("it runs on");
    }
    taken.extend((0..MOST).map(|_| submit()));
    release.send(true).expect("a step waits for it");
    drop(release);
    for (number, answers) in taken.into_iter().enumerate() {
        let last = answers.last().expect("an end");
        match &last.what {
            Happening::Failed(error) if number <= MOST => assert!(error.to_string().contains("wants it to fail")),
            Happening::Finished { finish: Finish::Length, .. } if number > MOST => {}
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(handle.finish().expect("the thread ends").stats().finished, 1 + 2 * MOST as u64);
}

#[test]
fn what_has_ended_before_a_step_that_failed_is_told_by_the_next() {
    let fails = Arc::new(AtomicBool::new(false));
    let of_gate = fails.clone();
    let gate: gate::Gate = Arc::new(move || of_gate.swap(false, Ordering::Relaxed));
    let mut engine =
        Engine::new(gated(gate, LoadOptions { max_sequences: 2, ..LoadOptions::default() }), EngineOptions::default());
    let [first, _] = [20, 30].map(|len| engine.submit(asked(len, 5)).expect("a valid request"));
    engine.step().expect("a step");
    assert!(engine.cancel(first));
    fails.store(true, Ordering::Relaxed);
    engine.step().expect_err("the gate fails");
    let cancelled = |event: &Event| {
        event.request == first && matches!(event.what, Happening::Finished { finish: Finish::Cancelled, .. })
    };
    assert!(engine.step().expect("a step").iter().any(cancelled));
    assert_eq!(engine.stats().finished, 1);
    assert_eq!(run(&mut engine), [(1, "length".to_owned())]);
}

#[test]
fn a_replay_submits_when_a_time_has_come_and_counts_from_there() {
    const STEP: Duration = Duration::from_millis(20);
    let gate: gate::Gate = Arc::new(|| {
        std::thread::sleep(STEP);
        false
    });
    let mut engine = Engine::new(gated(gate, LoadOptions::default()), EngineOptions::default());
    let line = |arrival_s| TraceLine { arrival_s, prompt_tokens: 9, new_tokens: 3, prefix: 0, prefix_tokens: 0 };
    let start = Instant::now();
    // At 0.25 s and 0.5 s.
    let go_on = &mut || ControlFlow::Continue(());
    let replayed = engine.replay(&[line(4000.0), line(8000.0)], 16_000.0, go_on).expect("it runs");
    let (elapsed, step) = (start.elapsed().as_secs_f64(), STEP.as_secs_f64());
    assert_eq!(replayed.answered, 2);
    assert!(elapsed >= 0.5 + 3.0 * step, "{elapsed}");
    // From the first one's coming to the last one's end, and from each one's coming on.
    assert!(replayed.seconds >= 0.25 + 3.0 * step && replayed.seconds <= elapsed - 0.25, "{replayed:?} {elapsed}");
    for times in [&replayed.first_token, &replayed.between_tokens] {
        assert!(times.p50 >= step && times.p99 <= elapsed - 0.25, "{replayed:?} {elapsed}");
    }
}

#[test]
fn a_queue_without_a_bound_takes_no_memory_for_it() {
    let engine = Engine::new(
        model(1, DType::F32, LoadOptions::default()),
        EngineOptions { max_waiting: usize::MAX, ..EngineOptions::default() },
    );
    let handle = EngineHandle::start(engine).expect("a thread");
    let last = handle.submit(asked(5, 2)).expect("a valid request").last().expect("an end");
    assert!(matches!(last.what, Happening::Finished { finish: Finish::Length, .. }), "{last:?}");
}

#[test]
fn who_drops_its_answers_is_not_answered_any_more() {
    // The first step waits until they are dropped.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let gate: gate::Gate = Arc::new(move || {
        // Later ones find that nobody is there to be waited for.
        let _ = wait.lock().expect("no step panics").recv();
        false
    });
    let options = LoadOptions { prefill_chunk: 10, ..LoadOptions::default() };
    let engine = Engine::new(gated(gate, options), EngineOptions::default());
    let handle = EngineHandle::start(engine).expect("a thread");
    drop(handle.submit(asked(100, 200)).expect("a valid request"));
    drop(go);
    let engine = handle.finish().expect("the thread ends");
    // Its prompt is not run to the end either: there is no token yet that nobody would hear of.
    assert!(engine.stats().prefilled <= 10, "{:?}", engine.stats());
    assert_eq!((engine.stats().decoded, engine.stats().finished, engine.cache().stats().used), (0, 1, 0));
}

#[test]
fn a_prompt_that_the_cache_has_no_room_for_says_so_whatever_windows_have_left_behind() {
    let old = Some(OldKv { dtype: DType::I8, recent: 1 });
    for (name, old_kv) in [(FIXTURES[0], None), (FIXTURES[1], None), (FIXTURES[0], old)] {
        let options = LoadOptions { cache_tokens: Some(128), prefill_chunk: 16, old_kv, ..LoadOptions::default() };
        let mut model = fixture(name, 1, DType::F32, options);
        let mut sequence = model.sequence();
        let error = model.prefill(&mut sequence, &prompt(1, 300)).expect_err("a full cache");
        assert!(matches!(error, Error::Memory(sinew::memory::Error::OutOfBlocks { .. })), "{name}: {error}");
        assert_eq!((sequence.len(), model.cache().stats().used), (0, 0), "{name}");
        let error = model.generate(&prompt(1, 300), &GenerateOptions::default(), &mut |_| ControlFlow::Continue(()));
        assert!(matches!(error, Err(Error::Memory(sinew::memory::Error::OutOfBlocks { .. }))), "{name}");
    }
}

#[test]
fn clients_of_an_engine_that_panics_are_told() {
    let gate: gate::Gate = Arc::new(|| panic!("a kernel that panics"));
    let engine =
        Engine::new(gated(gate, LoadOptions { max_sequences: 3, ..LoadOptions::default() }), EngineOptions::default());
    let handle = EngineHandle::start(engine).expect("a thread");
    let events: Vec<Event> = handle.submit(Request { samples: 2, ..asked(20, 5) }).expect("a valid request").collect();
    let ends = events.iter().map(|event| match &event.what {
        Happening::Failed(error) => (event.sample, error.to_string()),
        _ => panic!("{event:?}"),
    });
    assert_eq!(ends.collect::<Vec<_>>(), [0, 1].map(|sample| (sample, "the engine has ended".to_owned())));
    // What is asked while the thread is on its way out ends the same way, until nothing is taken any more.
    while let Ok(mut answers) = handle.submit(asked(20, 5)) {
        assert!(answers.all(|event| matches!(event.what, Happening::Failed(_))));
    }
    handle.finish().expect_err("it panicked");
}

#[test]
fn a_handle_refuses_what_its_queue_does_not_hold_at_once_and_answers_the_rest() {
    const MOST: usize = 3;
    let (running, is_running) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    // Held in its first step until what would release it is gone.
    let released = Mutex::new(released);
    let gate: gate::Gate = Arc::new(move || {
        running.send(()).expect("the test listens");
        released.lock().expect("no thread panics").recv().is_ok()
    });
    let options = EngineOptions { max_waiting: MOST, ..EngineOptions::default() };
    let engine = Engine::new(gated(gate, LoadOptions { max_sequences: 1, ..LoadOptions::default() }), options);
    let handle = EngineHandle::start(engine).expect("a thread");
    let mut taken = vec![handle.submit(asked(20, 3)).expect("nothing waits")];
    is_running.recv().expect("it runs");
    taken.extend((0..MOST).map(|_| handle.submit(asked(20, 3)).expect("there is room to wait")));
    match handle.submit(asked(20, 3)) {
        Err(Error::Busy { waiting }) => assert_eq!(waiting, MOST),
        other => panic!("{other:?}"),
    }
    drop(release);
    for answers in taken {
        let last = answers.last().expect("an end");
        assert!(matches!(last.what, Happening::Finished { .. }), "{last:?}");
    }
    let again = handle.submit(asked(20, 3)).expect("nothing waits any more");
    assert_eq!(again.filter(|event| matches!(event.what, Happening::Token { .. })).count(), 3);
    handle.finish().expect("an engine");
}

#[test]
fn every_answer_to_a_prompt_ends_once_also_where_it_is_cancelled_or_empty() {
    let lasts = |events: &mut dyn Iterator<Item = (usize, bool)>| {
        let mut samples: Vec<usize> = events.filter(|(_, last)| *last).map(|(sample, _)| sample).collect();
        samples.sort_unstable();
        samples
    };
    let mut engine = small(3, 1024);
    // Cancelled while it waits, before and after its answers part, and one that wants no token.
    for (steps, new) in [(0, 50), (1, 50), (5, 50), (0, 0)] {
        let id = engine.submit(Request { samples: 3, ..asked(30, new) }).expect("a valid request");
        for _ in 0..steps {
            engine.step().expect("a step");
        }
        assert!(new == 0 || engine.cancel(id));
        let mut events = Vec::new();
        while !engine.is_idle() {
            events.extend(engine.step().expect("a step").iter().map(|event| (event.sample, event.is_last())));
        }
        assert_eq!(lasts(&mut events.into_iter()), [0, 1, 2], "{steps} steps, {new} tokens");
    }
    assert_eq!(engine.cache().stats().used, 0);
    let handle = EngineHandle::start(engine).expect("a thread");
    for new in [0, 3] {
        let answers = handle.submit(Request { samples: 3, ..asked(30, new) }).expect("a valid request");
        assert_eq!(lasts(&mut answers.map(|event| (event.sample, event.is_last()))), [0, 1, 2], "{new} tokens");
    }
}
