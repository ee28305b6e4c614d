//! Texts as Python sees them: sequences of code points, with Unicode's classes of characters.

/// White space in Python: Unicode's, and four separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Characters that end a line for `str.splitlines`.
pub(super) fn is_line_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The lines of a text, as `str.splitlines` gives them.
pub(super) fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find(is_line_break) {
        let width = match rest[end..].starts_with("\r\n") {
            true => 2,
            false => rest[end..].chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keep_ends { end + width } else { end }]);
        rest = &rest[end + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Number of code points.
pub(super) fn char_count(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().count() }
}

/// Byte offset of the code point at `index`, or the length of the text beyond its end.
pub(super) fn byte_offset(text: &str, index: usize) -> usize {
    if text.is_ascii() {
        return index.min(text.len());
    }
    text.char_indices().nth(index).map_or(text.len(), |(at, _)| at)
}

/// Tells if Python's `repr` shows a character as it is.
pub(super) fn is_printable(c: char) -> bool {
    // Rust escapes the same categories as Python in debug output. After a letter, combining marks are not escaped.
    let mut buffer = [0; 5];
    buffer[0] = b'a';
    let end = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let escaped = std::str::from_utf8(&buffer[..end]).map_or(0, |text| text.escape_debug().count());
    escaped == 2 || matches!(c, '\'' | '"' | '\\')
}

/// The first of each ten decimal digits in Unicode.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620,
    0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0,
    0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60,
    0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

/// Ranges of superscripts, subscripts and enclosed digits, which are digits without being decimal.
const OTHER_DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

/// The value of a decimal digit of any script.
pub(super) fn decimal_digit(c: char) -> Option<u32> {
    let code = u32::from(c);
    let zero = ZEROS[..ZEROS.partition_point(|&zero| zero <= code)].last()?;
    (code - zero < 10).then_some(code - zero)
}

/// `str.isdigit` for one character.
pub(super) fn is_digit(c: char) -> bool {
    let code = u32::from(c);
    decimal_digit(c).is_some() || OTHER_DIGITS.iter().any(|&(first, last)| (first..=last).contains(&code))
}

/// `str.isidentifier`.
pub(super) fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c == '_' || c.is_alphabetic()) && chars.all(|c| c == '_' || c.is_alphanumeric())
}

/// A character as the first of a word in `str.title` and `str.capitalize`.
fn title_case(c: char, out: &mut String) {
    match c {
        'Ǆ'..='ǆ' => out.push('ǅ'),
        'Ǉ'..='ǉ' => out.push('ǈ'),
        'Ǌ'..='ǌ' => out.push('ǋ'),
        'Ǳ'..='ǳ' => out.push('ǲ'),
        // The part after the apostrophe is a capital, too.
        'ŉ' => out.push_str("ʼN"),
        // Georgian has capitals, and no title case.
        '\u{10d0}'..='\u{10ff}' => out.push(c),
        _ => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

/// `str.capitalize`.
pub(super) fn capitalize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    if let Some(first) = chars.next() {
        title_case(first, &mut out);
    }
    out.push_str(&chars.as_str().to_lowercase());
    out
}

/// `str.title`: letters after anything but a letter begin a word.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            title_case(c, &mut out);
        }
        in_word = is_cased(c);
    }
    out
}

/// Tells if a character has a case.
pub(super) fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

/// `str.casefold`: the lower case of the upper case brings most characters to one form.
pub(super) fn casefold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'ı' => out.push(c),
            _ => out.extend(c.to_uppercase().flat_map(char::to_lowercase).map(|c| if c == 'ς' { 'σ' } else { c })),
        }
    }
    out
}

/// `str.swapcase`.
pub(super) fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // The two letters of these differ in case.
            'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' => out.push(c),
            _ if c.is_uppercase() => out.extend(c.to_lowercase()),
            _ => out.extend(c.to_uppercase()),
        }
    }
    out
}

/// Text with the characters that HTML gives a meaning to escaped, as markupsafe does.
pub(super) fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}
