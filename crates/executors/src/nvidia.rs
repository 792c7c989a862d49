//! NVIDIA GPUs by NVML, which is loaded at run time: a machine without the driver has none, and that is no error.

use cluster::KindDraft;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// One device as the driver shows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gpu {
    pub(crate) kind: String,
    pub(crate) uuid: String,
    pub(crate) memory_gb: f64,
}

/// All devices, in the driver's order. One that cannot be read is left out, with a warning.
pub(crate) fn find() -> Vec<Gpu> {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) => {
            tracing::info!(%error, "no NVIDIA driver: no NVIDIA GPUs");
            return Vec::new();
        }
    };
    let count = nvml.device_count().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot count NVIDIA GPUs");
        0
    });
    let gpu = |index| match describe(&nvml, index) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            tracing::warn!(index, %error, "cannot read an NVIDIA GPU; it is not used");
            None
        }
    };
    (0..count).filter_map(gpu).collect()
}

/// Measures the devices of one run.
#[derive(Debug)]
pub(crate) struct Meter {
    nvml: Nvml,
    uuids: Vec<String>,
    percents: f64,
    samples: u32,
    peak: u64,
}

impl Meter {
    /// None without devices to measure, or without a driver to ask.
    pub(crate) fn of(uuids: &[String]) -> Option<Meter> {
        if uuids.is_empty() {
            return None;
        }
        let nvml = Nvml::init().inspect_err(|error| tracing::warn!(%error, "cannot measure NVIDIA GPUs")).ok()?;
        Some(Meter { nvml, uuids: uuids.to_vec(), percents: 0.0, samples: 0, peak: 0 })
    }

    /// Measures other devices from now on; what was measured counts.
    pub(crate) fn turn_to(&mut self, uuids: &[String]) {
        self.uuids = uuids.to_vec();
    }

    /// Mean use in percent so far, and the most memory that was in use at once.
    pub(crate) fn sample(&mut self) -> Option<(f64, u64)> {
        let mut memory = 0;
        for uuid in &self.uuids {
            let Ok(device) = self.nvml.device_by_uuid(uuid.as_str()) else { continue };
            if let Ok(rates) = device.utilization_rates() {
                self.percents += f64::from(rates.gpu);
                self.samples += 1;
            }
            memory += device.memory_info().map_or(0, |info| info.used);
        }
        self.peak = self.peak.max(memory);
        (self.samples > 0).then(|| (self.percents / f64::from(self.samples), self.peak))
    }
}

fn describe(nvml: &Nvml, index: u32) -> Result<Gpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let memory_gb = device.memory_info()?.total as f64 / f64::from(1 << 30);
    Ok(Gpu { kind: kind_of(&device.name()?), uuid: device.uuid()?, memory_gb })
}

/// The kind of a product: its model without maker, series and form factor. The memory size is part of it only where it
/// is not the one that the model has anyway: `a100` has 40 GB, `a100-80gb` has more.
fn kind_of(product: &str) -> String {
    let mut model = String::new();
    let mut memory = None;
    let product = product.to_ascii_lowercase();
    for word in product.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if let Some(size) = word.strip_suffix("gb").and_then(|size| size.parse::<u32>().ok()) {
            memory = Some(size);
        } else if !says_no_model(word) {
            model.push_str(word);
        }
    }
    if model.is_empty() {
        model = "gpu".into();
    }
    match memory {
        Some(size) if KindDraft::well_known(&model).memory_gb != f64::from(size) => format!("{model}-{size}gb"),
        Some(_) | None => model,
    }
}

fn says_no_model(word: &str) -> bool {
    let known = ["nvidia", "tesla", "geforce", "quadro", "graphics", "device", "gpu", "generation", "pcie"];
    known.contains(&word) || word.starts_with("sxm") || word.starts_with("hbm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_models_without_maker_series_and_form_factor() {
        let products = [
            ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
            ("NVIDIA A100 80GB PCIe", "a100-80gb"),
            ("NVIDIA A100-SXM4-40GB", "a100"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H100 PCIe", "h100"),
            ("NVIDIA H100 NVL", "h100nvl"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA GH200 480GB", "gh200-480gb"),
            ("Tesla V100-SXM2-16GB", "v100"),
            ("Tesla V100-SXM2-32GB", "v100-32gb"),
            ("Tesla P100-PCIE-12GB", "p100-12gb"),
            ("Tesla T4", "t4"),
            ("NVIDIA A10G", "a10g"),
            ("NVIDIA L4", "l4"),
            ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
            ("Quadro RTX 6000", "rtx6000"),
            ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
            ("Graphics Device", "gpu"),
        ];
        for (product, kind) in products {
            assert_eq!(kind_of(product), kind, "{product}");
        }
    }
}
