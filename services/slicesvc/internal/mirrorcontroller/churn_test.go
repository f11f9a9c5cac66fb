package mirrorcontroller_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// churn changes a few objects at random, while answers are lost, writes are refused, watches are
// late, other writers edit slices, and terms move between two replicas.
type churn struct {
	*fakeCluster
	random *rand.Rand
	end    func()
}

const churnNames = 4

func (c *churn) step(t *testing.T) {
	name := fmt.Sprint("svc-", c.random.IntN(churnNames))
	switch c.random.IntN(10) {
	case 0, 1, 2:
		c.putEndpoints(c.randomEndpoints(name))
	case 3:
		if _, ok := c.endpoints[name]; ok {
			c.deleteEndpoints(name)
		}
	case 4, 5:
		c.putService(service(name, func(s *corev1.Service) {
			if c.random.IntN(4) == 0 {
				selecting(s)
			}
		}))
	case 6:
		if _, ok := c.services[name]; ok {
			c.deleteService(name)
		}
	case 7:
		c.editAny()
	case 8:
		c.setLag(time.Duration(c.random.IntN(2000)) * time.Millisecond)
		for _, r := range c.replicas {
			r.setReadAnswer(time.Duration(c.random.IntN(2)*c.random.IntN(1500)) * time.Millisecond)
		}
	case 9:
		c.end()
		c.end = c.replicas[c.random.IntN(len(c.replicas))].hold(t)
	}
}

func (c *churn) randomEndpoints(name string) *corev1.Endpoints {
	object := endpoints(name, 80)
	object.Subsets = nil
	for port := range int32(c.random.IntN(3)) {
		var addresses []string
		for range 1 + c.random.IntN(3) {
			addresses = append(addresses, fmt.Sprintf("10.1.%d.%d%s", port, c.random.IntN(4), []string{"", "-"}[c.random.IntN(2)]))
		}
		slices.Sort(addresses)
		object = withSubset(object, 80+port, slices.CompactFunc(addresses, func(a, b string) bool {
			return strings.TrimSuffix(a, "-") == strings.TrimSuffix(b, "-")
		})...)
	}
	switch c.random.IntN(10) {
	case 0:
		labelled(object, discoveryv1.LabelSkipMirror, "true")
	case 1:
		labelled(object, "team", fmt.Sprint(c.random.IntN(3)))
	}
	return object
}

// editAny changes, relabels or deletes a mirrored slice as another writer.
func (c *churn) editAny() {
	c.mu.Lock()
	var names []string
	for name, slice := range c.slices {
		if slice.Labels[discoveryv1.LabelManagedBy] == mirror.ManagedBy && slice.DeletionTimestamp == nil {
			names = append(names, name)
		}
	}
	c.mu.Unlock()
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	name := names[c.random.IntN(len(names))]
	switch c.random.IntN(5) {
	case 0:
		c.delete(name)
	case 1:
		c.edit(name, func(s *discoveryv1.EndpointSlice) { s.Finalizers = []string{"example.com/hold"} })
		c.delete(name)
	case 2:
		c.edit(name, func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints...) })
	case 3:
		c.edit(name, func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelServiceName] = fmt.Sprint("svc-", c.random.IntN(churnNames))
		})
	case 4:
		c.edit(name, func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil })
	}
}

// disturb makes some writes fail.
func (c *churn) disturb() {
	random := rand.New(rand.NewPCG(c.random.Uint64(), 0)) // writes run concurrently, under the lock of the cluster
	c.refuseWith(func(pack.Change) error {
		switch random.IntN(10) {
		case 0:
			return denied()
		case 1:
			return kube.ErrConflict
		case 2:
			return apierrors.NewTooManyRequests("slow down", 1)
		}
		return nil
	})
	c.loseWith(func(pack.Change) error {
		if random.IntN(10) == 0 {
			return errors.New("connection lost")
		}
		return nil
	})
}

// wanted describes the slices that there should be.
func (c *churn) wanted() string {
	var all []string
	for name, object := range c.endpoints {
		if mirror.ReasonOf(object, c.services[name]) != "" {
			continue
		}
		for _, family := range mirror.Resolve(object, mirror.Limits{PerSubset: 1000}).Families {
			for _, group := range family.Groups {
				slice := &discoveryv1.EndpointSlice{Ports: group.Ports}
				slice.Labels = map[string]string{discoveryv1.LabelServiceName: name}
				for i := range group.Endpoints {
					slice.Endpoints = append(slice.Endpoints, group.Endpoints[i].Object())
				}
				all = append(all, describe(slice))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// Whatever happens, the slices are right soon after it stops, and then nothing is written.
func TestChurn_ConvergesAndStops(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &churn{fakeCluster: newCluster(t), random: rand.New(rand.NewPCG(seed, 15))}
				c.join(t)
				c.join(t)
				c.end = c.replicas[0].hold(t)
				c.disturb()
				for range 150 {
					c.step(t)
					advance(time.Duration(c.random.IntN(200)) * time.Millisecond)
				}
				c.refuseWith(nil)
				c.loseWith(nil)
				advance(5 * time.Minute)
				if got, want := c.contents(), c.wanted(); got != want {
					t.Errorf("slices are\n%s\nwant\n%s", got, want)
				}
				for _, slice := range c.slices {
					if owner := c.endpoints[slice.Labels[discoveryv1.LabelServiceName]]; slice.DeletionTimestamp == nil && owner != nil &&
						!slices.ContainsFunc(slice.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == owner.UID }) {
						t.Errorf("%s has owners %+v, want %s", slice.Name, slice.OwnerReferences, owner.UID)
					}
				}
				c.takeWrites()
				advance(10 * time.Minute)
				c.expectWrites("quiet", 0)
				for _, r := range c.replicas {
					if health := r.Health(); health.Failing.Count != 0 {
						t.Errorf("failing is %+v", health.Failing)
					}
				}
			})
		})
	}
}
