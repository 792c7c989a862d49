//! Points in time as people and programs write them down. Knows the calendar and offsets from UTC, not summer time.

/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;
/// Words that stand where there is no time.
const NEVER: [&str; 8] = ["None", "none", "Unknown", "NULL", "null", "NaT", "nan", "N/A"];

/// The offset of local time from UTC, in minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Zone(i32);

impl Zone {
    /// `Z`, `UTC`, `+08:00`, `-0330` or `+8`.
    pub(crate) fn parse(text: &str) -> Option<Zone> {
        if matches!(text, "Z" | "z" | "UTC" | "utc") {
            return Some(Zone(0));
        }
        let (sign, digits) = match text.split_at_checked(1)? {
            ("+", digits) => (1, digits),
            ("-", digits) => (-1, digits),
            _ => return None,
        };
        let (hours, minutes) = match digits.split_once(':') {
            Some((hours, minutes)) => (hours, minutes),
            None if digits.len() == 4 => digits.split_at_checked(2)?,
            None => (digits, "0"),
        };
        let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
        (hours <= 14 && minutes < 60).then_some(Zone(sign * (hours * 60 + minutes) as i32))
    }
}

impl std::fmt::Display for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.0 < 0 { '-' } else { '+' };
        write!(f, "{sign}{:02}:{:02}", self.0.abs() / 60, self.0.abs() % 60)
    }
}

/// Whether a cell says that something never happened.
pub(crate) fn is_never(text: &str) -> bool {
    NEVER.contains(&text)
}

/// Milliseconds since 1970 in UTC of `2017-10-09 07:03:03`, `2024-01-31T12:00:00.5+08:00`, `2024/01/31`; a stamp that
/// does not name its zone is in `zone`. Years from 1970 to 2199.
pub(crate) fn parse_stamp(text: &str, zone: Zone) -> Option<i64> {
    let text = text.trim();
    let date = text.get(..10)?;
    let mut parts = date.split(['-', '/']);
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || year.len() != 4 || month.len() != 2 || day.len() != 2 {
        return None;
    }
    let days = days_of(number(year, 4)?, number(month, 2)?, number(day, 2)?)?;
    let rest = &text[10..];
    if rest.is_empty() {
        return Some(days * DAY_MS - offset_ms(zone));
    }
    let rest = rest.strip_prefix([' ', 'T'])?;
    let (clock, zone) = match rest.find(['Z', 'z', '+', '-']) {
        Some(at) => (&rest[..at], Zone::parse(&rest[at..])?),
        None => match rest.strip_suffix(" UTC") {
            Some(clock) => (clock, Zone(0)),
            None => (rest, zone),
        },
    };
    Some(days * DAY_MS + clock_ms(clock.trim_end())? - offset_ms(zone))
}

/// Milliseconds of `[days-]hours:minutes:seconds[.fraction]`, `minutes:seconds`: how long something took.
pub(crate) fn parse_elapsed(text: &str) -> Option<i64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (number(days, 6)?, clock),
        None => (0, text),
    };
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let parts: Vec<i64> = whole.split(':').map(|part| number(part, 9)).collect::<Option<_>>()?;
    let seconds = match parts[..] {
        [hours, minutes, seconds] if minutes < 60 && seconds < 60 => hours * 3600 + minutes * 60 + seconds,
        [hours, minutes] if days > 0 && hours < 24 && minutes < 60 => hours * 3600 + minutes * 60,
        [minutes, seconds] if seconds < 60 => minutes * 60 + seconds,
        [hours] if days > 0 && hours < 24 => hours * 3600,
        _ => return None,
    };
    Some(days * DAY_MS + seconds * 1000 + fraction_ms(fraction)?)
}

/// The stamp of a moment, as `2017-10-09 07:03:03` in a zone.
pub(crate) fn show_stamp(ms: i64, zone: Zone) -> String {
    let local = ms + offset_ms(zone);
    let (days, rest) = (local.div_euclid(DAY_MS), local.rem_euclid(DAY_MS) / 1000);
    let (year, month, day) = date_of(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The midnight before a moment.
pub(crate) fn midnight(ms: i64, zone: Zone) -> i64 {
    let local = ms + offset_ms(zone);
    local.div_euclid(DAY_MS) * DAY_MS - offset_ms(zone)
}

fn offset_ms(zone: Zone) -> i64 {
    i64::from(zone.0) * 60_000
}

fn clock_ms(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let mut parts = whole.split(':').map(|part| number(part, 2));
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    let sound = parts.next().is_none() && hours < 24 && minutes < 60 && seconds <= 60;
    sound.then_some(((hours * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms(fraction)?)
}

fn fraction_ms(digits: &str) -> Option<i64> {
    let digits = digits.get(..3.min(digits.len()))?;
    Some(number(digits, 3)? * 10_i64.pow(3 - digits.len() as u32))
}

/// Digits and nothing else, at most so many.
fn number(text: &str, most: usize) -> Option<i64> {
    let digits = (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Days since 1970 of a date of the Gregorian calendar. March counts as the first month, so that leap days come last.
fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let length = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !(1970..2200).contains(&year) || !(1..=12).contains(&month) || !(1..=length).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    Some(year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 719_469)
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days.div_euclid(366);
    while days_of(year + 1, 1, 1).is_some_and(|start| start <= days) {
        year += 1;
    }
    let start = |month| days_of(year, month, 1).unwrap_or(0);
    let month = (1..=12).rev().find(|&month| start(month) <= days).unwrap_or(1);
    (year, month, days - start(month) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(text: &str) -> Option<i64> {
        parse_stamp(text, Zone::default())
    }

    #[test]
    fn stamps_are_read_as_programs_write_them() {
        assert_eq!(utc("1970-01-01 00:00:00"), Some(0));
        assert_eq!(utc("2017-08-14 23:27:00"), Some(1_502_753_220_000));
        assert_eq!(utc("2024-02-29T12:00:00.25Z"), Some(1_709_208_000_250));
        assert_eq!(utc("2024/02/29"), utc("2024-02-29 00:00"));
        assert_eq!(utc("2023-05-17 11:00:58+00:00"), utc("2023-05-17 11:00:58"));
        assert_eq!(utc("2023-05-17 11:00:58 UTC"), utc("2023-05-17T11:00:58"));
    }

    #[test]
    fn a_stamp_that_names_its_zone_needs_no_other() {
        let east = Zone::parse("+08:00").unwrap();
        assert_eq!(parse_stamp("2020-04-01 08:00:00", east), utc("2020-04-01 00:00:00"));
        assert_eq!(parse_stamp("2020-04-01 08:00:00-03:30", east), utc("2020-04-01 11:30:00"));
        assert_eq!((Zone::parse("-0330").unwrap().to_string(), east.to_string()), ("-03:30".into(), "+08:00".into()));
        assert!(["8", "+15:00", "+08:61", "Europe/Berlin", "", "+é"].iter().all(|text| Zone::parse(text).is_none()));
    }

    #[test]
    fn days_that_never_were_are_refused() {
        for text in ["2023-02-29", "2024-13-01", "1969-12-31", "2200-01-01", "2024-01-01 24:00:00", "yesterday", "é"] {
            assert_eq!(utc(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_what_was_read() {
        for text in ["1970-01-01 00:00:00", "2000-02-29 23:59:59", "2017-10-09 07:03:03", "2199-12-31 00:00:00"] {
            assert_eq!(show_stamp(utc(text).unwrap(), Zone::default()), text);
        }
        let east = Zone::parse("+08:00").unwrap();
        assert_eq!(show_stamp(midnight(utc("2020-03-31 20:00:00").unwrap(), east), east), "2020-04-01 00:00:00");
    }

    #[test]
    fn elapsed_times_are_read_as_slurm_writes_them() {
        assert_eq!(parse_elapsed("1-02:03:04"), Some(93_784_000));
        assert_eq!(parse_elapsed("00:10.5"), Some(10_500));
        assert_eq!(parse_elapsed("26:00:00"), Some(93_600_000));
        assert_eq!(parse_elapsed("2-00"), Some(172_800_000));
        assert!(["", "-1:00", "1:60:00", "1h", "nan"].iter().all(|text| parse_elapsed(text).is_none()));
    }
}
