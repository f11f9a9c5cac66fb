package nodehealth

import corev1 "k8s.io/api/core/v1"

// Labels that follow others, as upstream's controller keeps them.
const (
	LabelBetaOS   = "beta.kubernetes.io/os"
	LabelBetaArch = "beta.kubernetes.io/arch"
)

// missingLabels are those that do not say what the stable label says. Where there is no stable label nothing is known.
func missingLabels(labels map[string]string) map[string]string {
	var missing map[string]string
	for _, pair := range [...]struct{ stable, beta string }{
		{corev1.LabelOSStable, LabelBetaOS}, {corev1.LabelArchStable, LabelBetaArch},
	} {
		stable, known := labels[pair.stable]
		if beta, has := labels[pair.beta]; !known || has && beta == stable {
			continue
		}
		if missing == nil {
			missing = map[string]string{}
		}
		missing[pair.beta] = stable
	}
	return missing
}

// ZoneOf names the zone of a Node as upstream's controller does, in metrics too: region and zone, or empty without either.
func ZoneOf(labels map[string]string) string {
	zone, known := labels[corev1.LabelFailureDomainBetaZone]
	if !known {
		zone = labels[corev1.LabelTopologyZone]
	}
	region, known := labels[corev1.LabelFailureDomainBetaRegion]
	if !known {
		region = labels[corev1.LabelTopologyRegion]
	}
	if region == "" && zone == "" {
		return ""
	}
	return region + ":\x00:" + zone
}

// KeptLabels are the labels of Nodes that decisions are made from, beside Rules.Excluded.
func RequiredLabels() []string {
	return []string{
		corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion,
		corev1.LabelOSStable, corev1.LabelArchStable, LabelBetaOS, LabelBetaArch,
	}
}
