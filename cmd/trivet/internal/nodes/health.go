package nodes

import (
	"strings"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// Word says a health as --health takes it: "not-ready".
func Word(health leasev1.NodeHealth_Health) string {
	if health == leasev1.NodeHealth_HEALTH_UNSPECIFIED {
		return "-"
	}
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(health.String(), "HEALTH_")), "_", "-")
}

// Tone is the colour of a health.
func Tone(health leasev1.NodeHealth_Health) printer.Tone {
	switch concern(health) {
	case list.Ill:
		return printer.Bad
	case list.Doubt:
		return printer.Fair
	default:
		return printer.Good
	}
}

// IsWell says whether a Node of this health needs nobody.
func IsWell(health leasev1.NodeHealth_Health) bool { return concern(health) != list.Ill }

func concern(health leasev1.NodeHealth_Health) list.Concern {
	switch health {
	case leasev1.NodeHealth_HEALTH_READY:
		return list.None
	case leasev1.NodeHealth_HEALTH_NOT_READY, leasev1.NodeHealth_HEALTH_SILENT, leasev1.NodeHealth_HEALTH_UNKNOWN:
		return list.Ill
	default:
		return list.Doubt
	}
}

// words are all healths that may be asked for.
func words() []string {
	var all []string
	for health := leasev1.NodeHealth_HEALTH_STARTING; health <= leasev1.NodeHealth_HEALTH_UNKNOWN; health++ {
		all = append(all, Word(health))
	}
	return all
}

// healthOf reads a word; none is unspecified, which means all.
func healthOf(word string) leasev1.NodeHealth_Health {
	name := "HEALTH_" + strings.ToUpper(strings.ReplaceAll(word, "-", "_"))
	return leasev1.NodeHealth_Health(leasev1.NodeHealth_Health_value[name])
}
