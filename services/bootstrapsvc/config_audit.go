package bootstrapsvc

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
)

// AutoRepair selects the repairs that need no operator.
type AutoRepair string

const (
	// AutoRepairSafe repairs what is safe by rule.
	AutoRepairSafe AutoRepair = "safe"
	// AutoRepairOff repairs nothing.
	AutoRepairOff AutoRepair = "off"
)

// AuditConfig configures the audit of ClusterIPs and node ports.
type AuditConfig struct {
	// AutoRepair selects the repairs that need no operator.
	AutoRepair AutoRepair
	// FindingHistory and RepairHistory are how many ended findings and repairs are kept.
	FindingHistory, RepairHistory int
	// NodePortRange is kube-apiserver's --service-node-port-range; empty means the stored range.
	NodePortRange string
}

func defaultAudit() AuditConfig {
	return AuditConfig{AutoRepair: AutoRepairSafe, FindingHistory: 1000, RepairHistory: 100}
}

func (c *AuditConfig) registerFlags(fs *pflag.FlagSet) {
	fs.StringVar((*string)(&c.AutoRepair), "auto-repair", string(c.AutoRepair),
		"Automatic repairs of allocated ClusterIPs and node ports: \"safe\" (those that are safe by rule) or \"off\".")
	fs.IntVar(&c.FindingHistory, "finding-history", c.FindingHistory,
		"How many ended findings are kept.")
	fs.IntVar(&c.RepairHistory, "repair-history", c.RepairHistory,
		"How many repairs are kept; fewer if they have many steps.")
	fs.StringVar(&c.NodePortRange, "service-node-port-range", c.NodePortRange,
		"Range of node ports, as given to kube-apiserver; a stored range that differs is a finding. Default: the stored range.")
}

func (c *AuditConfig) problems(add func(flag string, err error)) {
	if c.AutoRepair != AutoRepairSafe && c.AutoRepair != AutoRepairOff {
		add("auto-repair", fmt.Errorf("%q is neither %q nor %q", string(c.AutoRepair), AutoRepairSafe, AutoRepairOff))
	}
	add("finding-history", checkHistory(c.FindingHistory))
	add("repair-history", checkHistory(c.RepairHistory))
	add("service-node-port-range", checkPortRange(c.NodePortRange))
}

// maxHistory keeps the history small enough for etcd.
const maxHistory = 10_000

func checkHistory(count int) error {
	if count < 1 || count > maxHistory {
		return fmt.Errorf("%d is out of range, want 1 to %d", count, maxHistory)
	}
	return nil
}

// checkPortRange accepts the text that kube-apiserver stores.
func checkPortRange(text string) error {
	if text == "" {
		return nil
	}
	from, to, _ := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(to, 10, 16)
	if err != nil || err2 != nil || first == 0 || last < first {
		return fmt.Errorf("%q is not a range like 30000-32767", text)
	}
	return nil
}

// controller is the configuration of the allocation controller.
func (c *AuditConfig) controller() allocationcontroller.Config {
	cfg := allocationcontroller.Config{
		AutoRepair: c.AutoRepair == AutoRepairSafe, FindingHistory: c.FindingHistory, RepairHistory: c.RepairHistory,
	}
	if c.NodePortRange != "" {
		cfg.ExpectedRanges = map[allocation.Store]string{allocation.NodePorts: c.NodePortRange}
	}
	return cfg
}
