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
    // Sixty-four of them at once, or after one that has ended; or of another user, who shares nothing.
    for (first_alone, salt) in [(false, 0), (true, 0), (true, 1)] {
        let options = LoadOptions { max_sequences: 64, cache_tokens: Some(4096), ..LoadOptions::default() };
        let mut engine = Engine::new(model(2, DType::F32, options), EngineOptions::default());
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
        // Whole blocks are shared, and what is left of the prefix is not.
        let shared = PREFIX / 16 * 16;
        assert_eq!(most, shared / 16 + 64 * 2);
        let done = engine.stats().since(&before);
        let alone = if first_alone && salt == 0 { 64 } else { 63 };
        assert_eq!((done.finished, done.found), (64, (alone * shared) as u64));
        assert_eq!(done.prefilled, (64 * (PREFIX + 9) - alone * shared) as u64);
    }
}
