//! What somebody may have meant who typed a word that is not known.

/// The known word nearest to a mistyped one, as the end of a sentence: "; did you mean `gpus`?". Nothing if none is near.
pub fn suggestion<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    // Whoever types a whole page means none of the words.
    let typed: String = typed.to_lowercase().chars().take(60).collect();
    let nearest = known.into_iter().map(|word| (strsim::osa_distance(&typed, &word.to_lowercase()), word)).min();
    match nearest {
        Some((steps, word)) if steps <= 1.max(word.chars().count() / 3) => format!("; did you mean `{word}`?"),
        _ => String::new(),
    }
}

/// The known words, those that are nearest to what was typed first.
pub fn nearest_first<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let typed: String = typed.to_lowercase().chars().take(60).collect();
    let mut known: Vec<&str> = known.into_iter().collect();
    known.sort_by_cached_key(|word| strsim::osa_distance(&typed, &word.to_lowercase()));
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_comes_first_and_none_is_left_out() {
        assert_eq!(nearest_first("gpsu", ["demo", "gpus", "gpu_kinds"]), ["gpus", "demo", "gpu_kinds"]);
    }

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_a_different_word_is_not() {
        let known = ["gpus", "duration_s", "demo"];
        assert_eq!(suggestion("gpsu", known), "; did you mean `gpus`?");
        assert_eq!(suggestion("Duration", known), "; did you mean `duration_s`?");
        assert_eq!(suggestion("colour", known), "");
    }
}
