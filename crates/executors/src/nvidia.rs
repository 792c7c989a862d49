//! NVIDIA GPUs by NVML, which is loaded at run time: a machine without the driver has none, and that is no error.

use cluster::KindDraft;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// As the driver says that MIG is switched on.
const NVML_DEVICE_MIG_ENABLE: u32 = 1;

/// One device that jobs can have: a whole GPU, or a MIG instance of one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gpu {
    pub(crate) kind: String,
    pub(crate) uuid: String,
    pub(crate) memory_gb: f64,
    pub(crate) is_instance: bool,
}

/// What the driver says of a GPU or of a MIG instance.
#[derive(Debug, Clone, PartialEq)]
struct Card {
    product: String,
    uuid: String,
    memory_bytes: u64,
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
    let gpus = |index| match nvml.device_by_index(index).and_then(|gpu| Ok((card(&gpu)?, instances(&gpu)?))) {
        Ok((card, instances)) => offered(card, instances),
        Err(error) => {
            tracing::warn!(index, %error, "cannot read an NVIDIA GPU; it is not used");
            Vec::new()
        }
    };
    (0..count).flat_map(gpus).collect()
}

/// What of a GPU jobs can have: where MIG is switched on its instances, for then no program can use the GPU as a whole.
fn offered(card: Card, instances: Option<Vec<Card>>) -> Vec<Gpu> {
    let gpu = |card: Card, is_instance| {
        let memory_gb = card.memory_bytes as f64 / f64::from(1 << 30);
        Gpu { kind: kind_of(&card.product), uuid: card.uuid, memory_gb, is_instance }
    };
    match instances {
        None => vec![gpu(card, false)],
        Some(instances) => {
            if instances.is_empty() {
                tracing::warn!(uuid = card.uuid, "MIG is switched on and there is no instance: this GPU is not used");
            }
            instances.into_iter().map(|instance| gpu(instance, true)).collect()
        }
    }
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

fn card(device: &Device<'_>) -> Result<Card, NvmlError> {
    Ok(Card { product: device.name()?, uuid: device.uuid()?, memory_bytes: device.memory_info()?.total })
}

/// The MIG instances of a GPU; none if it is not cut up. The driver counts the places for them, not all of which are taken.
fn instances(device: &Device<'_>) -> Result<Option<Vec<Card>>, NvmlError> {
    let is_cut_up = match device.mig_mode() {
        Ok(mode) => mode.current == NVML_DEVICE_MIG_ENABLE,
        // Older GPUs, and drivers from before there was MIG.
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => false,
        Err(error) => return Err(error),
    };
    if !is_cut_up {
        return Ok(None);
    }
    let mut found = Vec::new();
    for place in 0..device.mig_device_count()? {
        match device.mig_device_by_index(place) {
            Ok(instance) => found.push(card(&instance)?),
            Err(NvmlError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(found))
}

/// The kind of a product: its model without maker, series and form factor. The memory size is part of it only where it
/// is not the one that the model has anyway: `a100` has 40 GB, `a100-80gb` has more. A MIG instance is of a kind of its
/// own, by its GPU and its profile: `a100-mig-1g-5gb`.
fn kind_of(product: &str) -> String {
    if let Some((whole, profile)) = product.split_once(" MIG ") {
        let is_part = |letter: char| letter.is_ascii_alphanumeric();
        let profile = profile.to_ascii_lowercase();
        let parts: Vec<&str> = profile.split(|letter| !is_part(letter)).filter(|part| !part.is_empty()).collect();
        return format!("{}-mig-{}", kind_of(whole), parts.join("-"));
    }
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
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-mig-1g-5gb"),
            ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "a100-80gb-mig-3g-40gb"),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "h100-mig-1g-10gb-me"),
        ];
        for (product, kind) in products {
            assert_eq!(kind_of(product), kind, "{product}");
        }
    }

    fn scripted(product: &str, uuid: &str, gib: u64) -> Card {
        Card { product: product.into(), uuid: uuid.into(), memory_bytes: gib << 30 }
    }

    #[test]
    fn of_a_gpu_that_is_cut_up_its_instances_are_offered_and_not_the_whole() {
        let whole = || scripted("NVIDIA A100-SXM4-40GB", "GPU-1", 40);
        let part =
            |profile: &str, uuid: &str, gib| scripted(&format!("NVIDIA A100-SXM4-40GB MIG {profile}"), uuid, gib);
        let shown = |gpus: Vec<Gpu>| -> Vec<String> {
            gpus.iter().map(|gpu| format!("{} {} {} {}", gpu.kind, gpu.uuid, gpu.memory_gb, gpu.is_instance)).collect()
        };
        assert_eq!(shown(offered(whole(), None)), ["a100 GPU-1 40 false"]);
        let parts = vec![part("3g.20gb", "MIG-a", 20), part("1g.5gb", "MIG-b", 5), part("1g.5gb", "MIG-c", 5)];
        assert_eq!(
            shown(offered(whole(), Some(parts))),
            ["a100-mig-3g-20gb MIG-a 20 true", "a100-mig-1g-5gb MIG-b 5 true", "a100-mig-1g-5gb MIG-c 5 true"]
        );
        assert!(offered(whole(), Some(Vec::new())).is_empty());
    }
}
