//! Moments on the wire: RFC 3339, in UTC.

use jiff::Timestamp;

/// A moment, in milliseconds since 1970, as it is written; what lies beyond the years that can be written is written as the
/// last moment of them.
pub fn rfc3339(unix_millis: i64) -> String {
    let last = if unix_millis < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(unix_millis).unwrap_or(last).to_string()
}

/// The milliseconds since 1970 of a moment as it is written.
pub fn unix_millis(text: &str) -> Result<i64, String> {
    let found = || text.chars().take(40).collect::<String>();
    let expected = || format!("expected a moment like 2026-11-20T09:00:00Z, found `{}`", found());
    text.trim().parse::<Timestamp>().map(jiff::Timestamp::as_millisecond).map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_and_read() {
        assert_eq!(rfc3339(1_795_165_200_000), "2026-11-20T09:00:00Z");
        assert_eq!(rfc3339(1_795_165_200_250), "2026-11-20T09:00:00.25Z");
        assert_eq!(unix_millis("2026-11-20T10:00:00+01:00"), Ok(1_795_165_200_000));
    }

    #[test]
    fn a_moment_that_is_none_is_refused() {
        for text in ["tomorrow", "2026-11-20", "2026-13-01T00:00:00Z", ""] {
            let error = unix_millis(text).unwrap_err();
            assert_eq!(error, format!("expected a moment like 2026-11-20T09:00:00Z, found `{text}`"));
        }
    }

    #[test]
    fn no_moment_is_beyond_writing() {
        assert!(rfc3339(i64::MAX).starts_with("9999-12-30T"));
        assert!(rfc3339(i64::MIN).starts_with("-009999-01-02T"));
    }
}
