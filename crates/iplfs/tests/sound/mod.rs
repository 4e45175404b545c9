//! What a full check says.

use std::sync::Arc;
use tuff_iplfs::{BlockDevice, CheckOptions, Report, check};

/// A full check, of data too, finds nothing on a device. `place` is said if it does.
pub(crate) fn sound(device: &Arc<dyn BlockDevice>, place: &str) -> Report {
    let all = CheckOptions {
        data: true,
        fallback: false,
    };
    let report = check(device, all).unwrap();
    assert_eq!(report.findings, [], "{place}");
    report
}
