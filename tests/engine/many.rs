//! Requests that are all there, some of which are meant for another rotary embedding.

use sinew::models::engine::Many;

use super::*;

/// Frequencies that change with the length of sequences, from so many tokens on.
const LONG_ROPE: &str = "phi3_longrope_within_three_quarters_rotary_hd16_f32_older_config";

fn config() -> sinew::models::DecoderConfig {
    let folder = Folder::new(fixtures::fixture_path(LONG_ROPE));
    folder.config().expect("the config is valid").as_decoder().expect("it is a decoder").clone()
}

fn load(context: usize, max_sequences: usize) -> LanguageModel {
    let folder = Folder::new(fixtures::fixture_path(LONG_ROPE));
    let options = LoadOptions { context: Some(context), max_sequences, ..LoadOptions::default() };
    LanguageModel::load(folder.path(), &options).expect("the fixture loads")
}

/// Answers of so many tokens to prompts of so many.
fn requests(lengths: &[(usize, usize)]) -> Vec<Request> {
    let request = |(i, &(len, max_new_tokens)): (usize, &(usize, usize))| {
        let options = GenerateOptions { max_new_tokens, logprobs: ALL, ..GenerateOptions::default() };
        Request { options, ..Request::new(prompt(i as u32, len)) }
    };
    lengths.iter().enumerate().map(request).collect()
}

#[test]
fn each_of_many_is_answered_as_by_a_model_that_was_loaded_for_it_alone() {
    let config = config();
    let longest = config.longest_context();
    let long = longest - 8;
    assert!(!config.rotates_alike(12, long), "its frequencies change within its positions");
    let requests = requests(&[(5, 6), (long, 8), (9, 3), (long - 3, 5), (1, 7)]);
    let mut many = Many::new(&config);
    let numbers: Vec<usize> = requests.iter().map(|r| many.add(r.clone()).expect("it has room")).collect();
    assert_eq!((numbers, many.context()), ((0..5).collect(), longest));
    let model = load(many.context(), 3);
    many.check(&model).expect("it can answer all");
    let mut answers: Vec<Answer> = vec![Answer::default(); 5];
    let model = many.answer(model, &mut || ControlFlow::Continue(()), &mut |_, number, event| {
        match &event.what {
            Happening::Token { token, logprobs, .. } => {
                answers[number].tokens.push(*token);
                answers[number].logprobs.extend(logprobs.as_ref().map(hash));
            }
            Happening::Finished { finish, .. } => answers[number].finish = Some(*finish),
            Happening::Failed(error) => panic!("{number}: {error}"),
        }
        Ok::<_, Error>(())
    });
    assert_eq!(model.expect("all are answered").cache().stats().used, 0);
    for (number, (request, answer)) in requests.iter().zip(&answers).enumerate() {
        let context = request.prompt.len() + request.options.max_new_tokens;
        let expected = Answer { text: String::new(), ..alone(&mut load(context, 1), request, 0) };
        assert!(*answer == expected, "{number}: {answer:?} instead of {expected:?}");
    }
}

#[test]
fn the_first_that_cannot_be_answered_is_named_and_who_says_no_more_is_heard() {
    let config = config();
    let mut many = Many::new(&config);
    let longest = config.longest_context();
    let too_long = Request::new(prompt(0, longest + 1));
    assert!(many.add(too_long).expect_err("no room").to_string().contains(&longest.to_string()));
    let mut unknown = requests(&[(longest - 1, 1), (3, 40), (4, 40)]);
    unknown[1].prompt[1] = u32::MAX;
    unknown[2].prompt[0] = u32::MAX;
    for request in unknown {
        many.add(request).expect("it has room");
    }
    let model = load(many.context(), 2);
    let (number, error) = many.check(&model).expect_err("no such token");
    assert!(number == 1 && error.to_string().contains(&u32::MAX.to_string()), "{number}: {error}");

    let mut many = Many::new(&config);
    for request in requests(&[(3, 20), (longest - 1, 1)]) {
        many.add(request).expect("it has room");
    }
    let (mut steps, mut heard) = (0, 0);
    let mut go_on = || {
        steps += 1;
        if steps > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    many.answer(model, &mut go_on, &mut |_, number, _| {
        assert_eq!(number, 0, "the other is of a later group");
        heard += 1;
        Ok::<_, Error>(())
    })
    .expect("it is ended, which is no error");
    assert_eq!((steps, heard), (4, 3));
    let mut many = Many::new(&config);
    many.add(Request::new(prompt(0, 3))).expect("it has room");
    let model = load(many.context(), 1);
    let error = many.answer(model, &mut || ControlFlow::Continue(()), &mut |_, _, _| Err(Error::Cancelled));
    assert!(matches!(error, Err(Error::Cancelled)), "{error:?}");
}
