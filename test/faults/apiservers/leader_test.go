package apiservers

import (
	"errors"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"

	"github.com/trivet-dev/trivet/internal/testkit"
)

// whoLeads returns first the machine whose sidecar leads, of two: it alone takes a call that writes.
func (p plane) whoLeads(machines []*machine) (leader, other *machine) {
	p.Helper()
	testkit.Eventually(p, soon, func() error {
		var problems []error
		for i, m := range machines {
			_, err := m.client.ReconcileBaseline(p.Context(), &bootstrapv1.ReconcileBaselineRequest{})
			if err == nil {
				leader, other = m, machines[1-i]
				return nil
			}
			problems = append(problems, err)
		}
		return errors.Join(problems...)
	})
	return leader, other
}
