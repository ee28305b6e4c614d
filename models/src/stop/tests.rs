use proptest::prelude::*;

use super::*;
use crate::tokenizer::tests::{byte_level, sentencepiece};

fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer, true);
    let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).expect("decoded")).collect();
    pieces.push(detokenizer.finish().expect("decoded"));
    assert_eq!(detokenizer.finish().expect("decoded"), "", "nothing is left after the end");
    pieces
}

#[test]
fn a_character_of_several_tokens_appears_when_it_is_complete() {
    let tokenizer = byte_level();
    let ids = tokenizer.encode("hello é🦀!", false).expect("encoded");
    assert_eq!(pieces(&tokenizer, &ids), ["hello", " ", "", "é", "", "", "", "🦀", "!", ""]);
}

#[test]
fn an_incomplete_character_at_the_end_is_replaced() {
    let tokenizer = byte_level();
    assert_eq!(pieces(&tokenizer, &[u32::from(b'a'), 0xF0, 0x9F, 0xA6]), ["a", "", "", "", "\u{FFFD}"]);
    assert_eq!(pieces(&tokenizer, &[0xFF, u32::from(b'a')]), ["", "\u{FFFD}a", ""]);
}

#[test]
fn wrong_bytes_without_end_do_not_pile_up() {
    let tokenizer = byte_level();
    let ids = vec![0xFF; 1000];
    let mut detokenizer = Detokenizer::new(&tokenizer, true);
    let mut text = String::new();
    for &id in &ids {
        text.push_str(&detokenizer.push(id).expect("decoded"));
        assert!(detokenizer.window.len() <= MAX_PENDING + 1);
    }
    text.push_str(&detokenizer.finish().expect("decoded"));
    assert_eq!(text, tokenizer.decode(&ids, true).expect("decoded"));
}

#[test]
fn spaces_that_belong_to_words_are_kept_between_them_and_dropped_at_the_start() {
    let tokenizer = sentencepiece();
    let id = |token: &str| tokenizer.token_to_id(token).expect("in the vocabulary");
    let ids = [id("▁hello"), id("</s>"), id("▁world"), id("▁"), id("▁"), id("wo"), id(".")];
    assert_eq!(pieces(&tokenizer, &ids), ["hello", "", " world", " ", " ", "wo", ".", ""]);
    let ids = [id("</s>"), id("▁"), id("▁"), id("▁hello"), 0xE2, 0x82, 0xAC, 0xC3, 0xA9, id("▁world")];
    assert_eq!(pieces(&tokenizer, &ids).concat(), "  hello€é world");
}

#[test]
fn wrong_byte_tokens_leave_what_is_out_as_it_is() {
    let tokenizer = sentencepiece();
    let a = tokenizer.token_to_id("a").expect("in the vocabulary");
    let text = pieces(&tokenizer, &[a, 0xE2, 0x82, 0xAC, 0xE2, a, a]).concat();
    assert!(text.starts_with("a€\u{FFFD}") && text.ends_with("aa"), "{text}");
}

#[test]
fn the_window_stays_short() {
    let tokenizer = byte_level();
    let mut detokenizer = Detokenizer::new(&tokenizer, true);
    for &byte in "é🦀 hello ".repeat(100).as_bytes() {
        detokenizer.push(u32::from(byte)).expect("decoded");
        assert!(detokenizer.window.len() <= 8, "{}", detokenizer.window.len());
    }
}

#[test]
fn a_stop_string_is_found_across_tokens_and_not_shown() {
    let tokenizer = byte_level();
    let stops = StopStrings::new(["</x>", "é!"]).expect("valid");
    let mut stream = TextStream::new(&tokenizer, true, stops);
    let mut text = String::new();
    let mut stopped_by = None;
    for id in tokenizer.encode("hello é? é! more", false).expect("encoded") {
        let step = stream.push(id).expect("decoded");
        text.push_str(&step.text);
        stopped_by = step.stopped_by;
        if stopped_by.is_some() {
            break;
        }
    }
    assert_eq!((text.as_str(), stopped_by), ("hello é? ", Some(1)));
    assert_eq!(stream.push(0).expect("decoded").text, "", "nothing follows the end");
}

#[test]
fn what_was_held_back_is_shown_at_the_end() {
    let tokenizer = byte_level();
    let mut stream = TextStream::new(&tokenizer, true, StopStrings::new(["STOP"]).expect("valid"));
    let mut text = String::new();
    for id in tokenizer.encode("no STO", false).expect("encoded") {
        text.push_str(&stream.push(id).expect("decoded").text);
    }
    assert_eq!(text, "no ");
    assert_eq!(stream.finish().expect("decoded").text, "STO");
}

#[test]
fn an_empty_stop_string_is_refused_and_an_empty_list_is_not() {
    assert!(StopStrings::new(["a", ""]).is_err());
    let mut none = StopStrings::new(Vec::<String>::new()).expect("valid");
    assert_eq!(none.push("abc").text, "abc");
}

/// The documented meaning, on the whole text: the first character at which a stop string is complete.
fn by_brute_force(stops: &[String], text: &str) -> (String, Option<usize>) {
    for (end, _) in text.char_indices().skip(1).chain([(text.len(), ' ')]) {
        let ending = (0..stops.len()).filter(|&i| text[..end].ends_with(&stops[i]));
        if let Some(stop) = ending.max_by_key(|&i| (stops[i].len(), std::cmp::Reverse(i))) {
            return (text[..end - stops[stop].len()].to_owned(), Some(stop));
        }
    }
    (text.to_owned(), None)
}

fn cut(text: &str, sizes: &[usize]) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest: Vec<char> = text.chars().collect();
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let tail = rest.split_off(size.min(rest.len()));
        pieces.push(rest.into_iter().collect());
        rest = tail;
    }
    pieces
}

proptest! {
    #[test]
    fn the_pieces_join_to_the_decoded_whole(
        words in prop::collection::vec(prop::sample::select(vec!["hello", " ", "é", "🦀", "漢字", "\u{FFFD}", "x"]), 0..20),
    ) {
        let tokenizer = byte_level();
        let text = words.concat();
        let ids = tokenizer.encode(&text, false).expect("encoded");
        prop_assert_eq!(pieces(&tokenizer, &ids).concat(), text);
    }

    #[test]
    fn any_bytes_join_to_their_lossy_decoding(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let tokenizer = byte_level();
        let ids: Vec<u32> = bytes.iter().map(|&b| u32::from(b)).collect();
        prop_assert_eq!(pieces(&tokenizer, &ids).concat(), String::from_utf8_lossy(&bytes).into_owned());
    }

    #[test]
    fn any_tokens_of_a_sentencepiece_vocabulary_decode_without_panic(
        ids in prop::collection::vec(0u32..270, 0..60),
        words in prop::collection::vec(256u32..264, 0..60),
    ) {
        let tokenizer = sentencepiece();
        pieces(&tokenizer, &ids);
        prop_assert_eq!(pieces(&tokenizer, &words).concat(), tokenizer.decode(&words, true).expect("decoded"));
    }

    #[test]
    fn stopping_does_not_depend_on_the_pieces(
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
        text in "[abcé]{0,30}",
        sizes in prop::collection::vec(1usize..6, 1..5),
    ) {
        let mut stream = StopStrings::new(stops.clone()).expect("valid");
        let mut shown = String::new();
        let mut stopped_by = None;
        for piece in cut(&text, &sizes) {
            let step = stream.push(&piece);
            shown.push_str(&step.text);
            stopped_by = step.stopped_by;
        }
        if stopped_by.is_none() {
            shown.push_str(&stream.finish());
        }
        prop_assert_eq!((shown, stopped_by), by_brute_force(&stops, &text));
    }
}

/// A byte-level tokenizer in which `<s>` is 260 and `</s>` 261, and what a stream shows of some ids.
fn stream_of(stops: &[&str], ids: &[u32]) -> (String, Option<usize>, usize) {
    let tokenizer = byte_level();
    let mut stream = TextStream::new(&tokenizer, true, StopStrings::new(stops.iter().copied()).expect("valid"));
    let mut shown = String::new();
    for (pushed, &id) in ids.iter().enumerate() {
        let step = stream.push(id).expect("decoded");
        shown.push_str(&step.text);
        if step.stopped_by.is_some() {
            return (shown, step.stopped_by, pushed + 1);
        }
    }
    let last = stream.finish().expect("decoded");
    (shown + &last.text, last.stopped_by, ids.len())
}

const BEGIN: u32 = 260;
const END: u32 = 261;

fn letters(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn a_special_token_may_be_a_stop_string() {
    let tokenizer = byte_level();
    assert_eq!(["<s>", "</s>"].map(|token| tokenizer.token_to_id(token)), [Some(BEGIN), Some(END)]);
    let ids = [letters("ab"), vec![END], letters("cd")].concat();
    assert_eq!(stream_of(&["</s>"], &ids), ("ab".to_owned(), Some(0), 3));
    assert_eq!(stream_of(&["<s>"], &ids), ("abcd".to_owned(), None, 5));
    // The first stop text to be complete wins.
    assert_eq!(stream_of(&["d", "</s>", "c"], &ids), ("ab".to_owned(), Some(1), 3));
    assert_eq!(stream_of(&["b</s>c", "x"], &ids), ("a".to_owned(), Some(0), 4));
    assert_eq!(stream_of(&["b</", "</s>"], &ids), ("a".to_owned(), Some(0), 3));
    assert_eq!(stream_of(&["/s"], &ids), ("ab".to_owned(), Some(0), 3));
    assert_eq!(stream_of(&["</s>"], &[END, END]), (String::new(), Some(0), 1));
}

#[test]
fn no_stop_string_matches_across_a_skipped_token() {
    let ids = [letters("ab"), vec![END], letters("cd")].concat();
    for stop in ["bc", "abcd", "abc", "ab</s"] {
        let found = stop == "ab</s";
        let expected = if found { (String::new(), Some(0), 3) } else { ("abcd".to_owned(), None, 5) };
        assert_eq!(stream_of(&[stop], &ids), expected, "{stop}");
    }
    let twice = [letters("a"), vec![BEGIN, BEGIN], letters("b")].concat();
    assert_eq!(stream_of(&["ab", "a<s>b"], &twice), ("ab".to_owned(), None, 4));
    assert_eq!(stream_of(&["ab", "a<s><s>b"], &twice), (String::new(), Some(1), 4));
}

#[test]
fn text_before_a_special_stop_is_shown_completely() {
    // The first two bytes of a crab, which nothing completes before the stop.
    let ids = [letters("a"), vec![0xF0, 0x9F, END]].concat();
    assert_eq!(stream_of(&["</s>"], &ids), ("a\u{FFFD}".to_owned(), Some(0), 4));
    assert_eq!(stream_of(&["a</s>"], &ids), ("a\u{FFFD}".to_owned(), None, 4));
    assert_eq!(stream_of(&["\u{FFFD}</s>"], &ids), ("a".to_owned(), Some(0), 4));
    // The stop text begins in the incomplete character and is no longer than the token.
    assert_eq!(stream_of(&["\u{FFFD}<"], &ids), ("a".to_owned(), Some(0), 4));
    // Two incomplete characters, of which one is in the stop text.
    let two = [letters("a"), vec![0xF0, 0xC3, END]].concat();
    assert_eq!(stream_of(&["\u{FFFD}<"], &two), ("a\u{FFFD}".to_owned(), Some(0), 4));
    // One that is completed behind a special token is shown as without it.
    let split = [vec![0xC3, END, 0xA9], letters("a")].concat();
    assert_eq!(stream_of(&["x"], &split), ("éa".to_owned(), None, 4));
    assert_eq!(stream_of(&["é"], &split).1, Some(0));
    assert_eq!(stream_of(&[], &split), ("éa".to_owned(), None, 4));
}

#[test]
fn an_end_token_may_complete_a_stop_string() {
    let tokenizer = byte_level();
    let last = |stops: &[&str], skip_special: bool| {
        let mut stream =
            TextStream::new(&tokenizer, skip_special, StopStrings::new(stops.iter().copied()).expect("valid"));
        let mut shown: String = letters("ab").iter().map(|&id| stream.push(id).expect("decoded").text).collect();
        let last = stream.finish_with(END).expect("decoded");
        shown.push_str(&last.text);
        assert_eq!(stream.finish().expect("decoded"), StopStep::default(), "nothing is left");
        (shown, last.stopped_by)
    };
    for skip in [false, true] {
        assert_eq!(last(&["</s>"], skip), ("ab".to_owned(), Some(0)));
        assert_eq!(last(&["b</s>"], skip), ("a".to_owned(), Some(0)));
        assert_eq!(last(&["b</s>c", "abc"], skip), ("ab".to_owned(), None));
        assert_eq!(last(&[], skip), ("ab".to_owned(), None));
    }
}

#[test]
fn what_is_held_for_a_stop_string_stays_short() {
    let mut stops = StopStrings::new(["<s><s><e>"]).expect("valid");
    for _ in 0..1000 {
        assert_eq!(stops.push_hidden("<s>").text, "");
        assert!(
            stops.held.len() <= 9 && stops.hidden.len() <= 3,
            "{} in {} parts",
            stops.held.len(),
            stops.hidden.len()
        );
    }
    assert_eq!(stops.push("<e").text, "");
    assert_eq!(stops.finish(), "<e");
    assert!(stops.hidden.is_empty());
}

proptest! {
    #[test]
    fn hidden_text_is_searched_and_not_shown(
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
        pieces in prop::collection::vec(("[abcé]{0,4}", any::<bool>()), 0..12),
    ) {
        let mut stream = StopStrings::new(stops.clone()).expect("valid");
        let mut shown = String::new();
        let mut stopped_by = None;
        for (piece, hidden) in &pieces {
            let step = if *hidden { stream.push_hidden(piece) } else { stream.push(piece) };
            shown.push_str(&step.text);
            stopped_by = step.stopped_by;
        }
        if stopped_by.is_none() {
            shown.push_str(&stream.finish());
        }
        let all: String = pieces.iter().map(|(piece, _)| piece.as_str()).collect();
        let (searched, expected_stop) = by_brute_force(&stops, &all);
        let (mut expected, mut at) = (String::new(), 0);
        for (piece, hidden) in &pieces {
            let end = (at + piece.len()).min(searched.len());
            if !hidden {
                expected.push_str(&searched[at.min(end)..end]);
            }
            at = end;
        }
        prop_assert_eq!((shown, stopped_by), (expected, expected_stop));
    }
}
