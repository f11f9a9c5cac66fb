package eviction_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// Upstream's tables of tolerations, and values that no table has.
func TestObserve_Tolerations(t *testing.T) {
	value := func(operator corev1.TolerationOperator, value string) corev1.Toleration {
		return corev1.Toleration{Key: "a", Operator: operator, Value: value}
	}
	numbered := noExecute("a")
	numbered.Value = "7"
	const never, now = -1, 100
	for name, c := range map[string]struct {
		taint       corev1.Taint
		tolerations []corev1.Toleration
		due         float64
	}{
		"none":                                 {due: now},
		"of another key":                       {tolerations: []corev1.Toleration{tolerates("b")}, due: now},
		"of another effect":                    {tolerations: []corev1.Toleration{{Key: "a", Operator: "Exists", Effect: "NoSchedule"}}, due: now},
		"of another value":                     {tolerations: []corev1.Toleration{value("Equal", "w")}, due: now},
		"of an unknown operator":               {tolerations: []corev1.Toleration{value("Like", "v")}, due: now},
		"without an end":                       {tolerations: []corev1.Toleration{tolerates("a")}, due: never},
		"of the value":                         {tolerations: []corev1.Toleration{value("", "v")}, due: never},
		"of any effect":                        {tolerations: []corev1.Toleration{{Key: "a", Operator: "Exists"}}, due: never},
		"of everything, as static pods have":   {tolerations: []corev1.Toleration{{Operator: "Exists", Effect: "NoExecute"}}, due: never},
		"for seconds":                          {tolerations: []corev1.Toleration{tolerates("a", 60)}, due: now + 60},
		"for no second":                        {tolerations: []corev1.Toleration{tolerates("a", 0)}, due: now},
		"for less than none":                   {tolerations: []corev1.Toleration{tolerates("a", -5)}, due: now},
		"for the least":                        {tolerations: []corev1.Toleration{tolerates("a", math.MinInt64)}, due: now},
		"for more seconds than time has":       {tolerations: []corev1.Toleration{tolerates("a", math.MaxInt64)}, due: never},
		"for just more than can be added":      {tolerations: []corev1.Toleration{tolerates("a", math.MaxInt64/1_000_000_000)}, due: never},
		"the first that fits counts":           {tolerations: []corev1.Toleration{tolerates("b"), tolerates("a", 60), tolerates("a")}, due: now + 60},
		"the first without an end counts, too": {tolerations: []corev1.Toleration{tolerates("a"), tolerates("a", 60)}, due: never},
		"of a greater number":                  {taint: numbered, tolerations: []corev1.Toleration{value("Gt", "6")}, due: never},
		"of no greater number":                 {taint: numbered, tolerations: []corev1.Toleration{value("Gt", "7")}, due: now},
		"of a smaller number":                  {taint: numbered, tolerations: []corev1.Toleration{value("Lt", "8")}, due: never},
		"of no smaller number":                 {taint: numbered, tolerations: []corev1.Toleration{value("Lt", "7")}, due: now},
		"of what is no number":                 {taint: numbered, tolerations: []corev1.Toleration{value("Lt", "many")}, due: now},
		"of a number where is none":            {tolerations: []corev1.Toleration{value("Gt", "6")}, due: now},
	} {
		t.Run(name, func(t *testing.T) {
			taint, pod := c.taint, newPod("p", c.tolerations...)
			if taint.Key == "" {
				taint = noExecute("a")
			}
			got := dues(after(t, observed{node: newNode()}, observed{at: now * seconds, node: newNode(taint), pods: pods(pod)}))
			want := map[string]float64{"p": c.due}
			if c.due == never {
				delete(want, "p")
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("due (-want +got):\n%s", diff)
			}
		})
	}
}
