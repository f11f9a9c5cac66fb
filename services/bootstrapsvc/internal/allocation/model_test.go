package allocation_test

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// model is a simulated cluster with the content of etcd. It puts every change into an index, as
// watches would.
type model struct {
	services  map[allocation.Key]allocation.Service
	addresses map[string]allocation.IPAddress
	cidrs     map[string]allocation.CIDR
	bitmaps   map[allocation.Store]allocation.Bitmap
	version   int64
	index     *allocation.Index
}

func newModel(settings allocation.Settings) *model {
	return &model{
		services:  map[allocation.Key]allocation.Service{},
		addresses: map[string]allocation.IPAddress{},
		cidrs:     map[string]allocation.CIDR{},
		bitmaps:   map[allocation.Store]allocation.Bitmap{},
		index:     allocation.NewIndex(settings),
	}
}

func allSettings() allocation.Settings {
	return allocation.Settings{Stores: allocation.Stores()}
}

// noGracePeriods makes the findings independent of the time of the comparison.
func noGracePeriods() allocation.Settings {
	return allocation.Settings{Stores: allocation.Stores(), GracePeriods: allocation.GracePeriods{Interval: time.Nanosecond}}
}

func (c *model) next() string {
	c.version++
	return fmt.Sprint(c.version)
}

func (c *model) putService(s allocation.Service) {
	c.services[s.Key] = s
	c.index.PutService(s)
}

func (c *model) deleteService(k allocation.Key) {
	delete(c.services, k)
	c.index.DeleteService(k)
}

func (c *model) putObject(a allocation.IPAddress) {
	if a.UID == "" {
		a.UID = "uid-" + c.next()
	}
	a.ResourceVersion = c.next()
	c.addresses[a.Name] = a
	c.index.PutIPAddress(a)
}

func (c *model) deleteObject(name string) {
	delete(c.addresses, name)
	c.index.DeleteIPAddress(name)
}

func (c *model) putCIDR(v allocation.CIDR) {
	c.cidrs[v.Name] = v
	c.index.PutCIDR(v)
}

func (c *model) deleteCIDR(name string) {
	delete(c.cidrs, name)
	c.index.DeleteCIDR(name)
}

func (c *model) putBitmap(b allocation.Bitmap) {
	c.version++
	b.Revision = c.version
	c.bitmaps[b.Store] = b
	c.index.PutBitmap(b)
}

func (c *model) objects() objects {
	return objects{
		Services:    slices.Collect(maps.Values(c.services)),
		IPAddresses: slices.Collect(maps.Values(c.addresses)),
		CIDRs:       slices.Collect(maps.Values(c.cidrs)),
		Bitmaps:     slices.Collect(maps.Values(c.bitmaps)),
	}
}

// live returns what a controller would read for a step.
func (c *model) live(s allocation.Step) allocation.LiveState {
	live := allocation.LiveState{Usage: allocation.CountUsage(slices.Collect(maps.Values(c.services))), Bitmap: c.bitmaps[s.Store]}
	if object, ok := c.addresses[s.Subject]; ok && s.Store == allocation.IPAddresses {
		live.IPAddress = &object
	}
	return live
}

// apply applies a step if Check passes, and reports whether it did.
func (c *model) apply(s allocation.Step) (bool, error) {
	live := c.live(s)
	if result, _ := allocation.Check(s, live); result != allocation.CheckPassed {
		return false, nil
	}
	switch s.Verb {
	case planned.Create, planned.Relabel:
		c.putObject(s.Object)
	case planned.Delete:
		c.deleteObject(s.Subject)
	default:
		data, err := live.Bitmap.Write([]allocation.Step{s})
		if err != nil {
			return false, err
		}
		live.Bitmap.Data = data
		c.putBitmap(live.Bitmap)
	}
	return true, nil
}

// users returns the Services that name an address or a port, without an index.
func (c *model) users(store allocation.Store, subject string) []string {
	var users []string
	for k, s := range c.services {
		uses := slices.Contains(s.ClusterIPs, subject)
		if store == allocation.NodePorts {
			uses = fmt.Sprint(s.HealthCheckNodePort) == subject || slices.ContainsFunc(s.Ports, func(p allocation.Port) bool {
				return fmt.Sprint(p.Number) == subject
			})
		}
		if uses {
			users = append(users, k.String())
		}
	}
	slices.Sort(users)
	return users
}

// Random histories draw from few values, so that they collide.
var (
	someNames     = []string{"a", "b", "c", "d"}
	someAddresses = []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.6", "10.0.0.7", "2001:db8::1", "192.168.0.1"}
	otherTexts    = []string{"None", "", "10.0.0.999", "none"}
	somePorts     = []int32{100, 101, 102, 107, 300}
)

func anyService(t *rapid.T) allocation.Service {
	s := allocation.Service{
		Key:  key(rapid.SampledFrom(someNames).Draw(t, "name")),
		Type: rapid.SampledFrom([]allocation.ServiceType{allocation.ClusterIP, "NodePort", allocation.ExternalName}).Draw(t, "type"),
		ClusterIPs: rapid.SliceOfN(rapid.SampledFrom(append(slices.Clone(someAddresses), otherTexts...)), 0, 2).
			Draw(t, "addresses"),
		Created:  birth.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "age")) * time.Second),
		Deleting: rapid.Bool().Draw(t, "deleting"),
	}
	s.UID = fmt.Sprintf("uid-%s-%d", s.Name, rapid.IntRange(0, 1).Draw(t, "life"))
	for range rapid.IntRange(0, 2).Draw(t, "ports") {
		s.Ports = append(s.Ports, allocation.Port{
			Number:   rapid.SampledFrom(somePorts).Draw(t, "port"),
			Protocol: rapid.SampledFrom([]string{"TCP", "UDP"}).Draw(t, "protocol"),
		})
	}
	s.HealthCheckNodePort = rapid.SampledFrom(append([]int32{0, 0, 0}, somePorts...)).Draw(t, "health")
	return s
}

func anyObject(t *rapid.T) allocation.IPAddress {
	a := object(rapid.SampledFrom(append(slices.Clone(someAddresses), "odd", "2001:DB8::1")).Draw(t, "address"),
		rapid.SampledFrom(someNames).Draw(t, "parent"))
	a.UID = ""
	a.ManagedBy = rapid.SampledFrom([]string{a.ManagedBy, a.ManagedBy, a.ManagedBy, "", "else"}).Draw(t, "manager")
	a.Family = rapid.SampledFrom([]string{a.Family, a.Family, ""}).Draw(t, "family")
	a.Parent.Group = rapid.SampledFrom([]string{"", "", "", "example.com"}).Draw(t, "group")
	a.Deleting = rapid.IntRange(0, 9).Draw(t, "going") == 0
	return a
}

func anyCIDR(t *rapid.T) allocation.CIDR {
	return allocation.CIDR{
		Name:     rapid.SampledFrom([]string{"kubernetes", "more"}).Draw(t, "name"),
		Prefixes: rapid.SliceOfN(rapid.SampledFrom([]string{"10.0.0.0/29", "10.0.0.0/30", "2001:db8::/64", "192.168.0.0/24", "odd"}), 1, 2).Draw(t, "prefixes"),
		Ready:    rapid.Bool().Draw(t, "ready"),
	}
}

func anyBitmap(t *rapid.T) allocation.Bitmap {
	store := rapid.SampledFrom([]allocation.Store{
		allocation.NodePorts, allocation.NodePorts, allocation.ClusterIPs, allocation.SecondaryClusterIPs,
	}).Draw(t, "store")
	ranges := map[allocation.Store][]string{
		allocation.NodePorts:           {"100-107", "100-107", "100-107", "101-107", "odd"},
		allocation.ClusterIPs:          {"10.0.0.0/29", "10.0.0.0/29", "10.0.0.0/28"},
		allocation.SecondaryClusterIPs: {"2001:db8::/112", "2001:db8::/112", "odd"},
	}
	b := allocation.Bitmap{
		Store:   store,
		Range:   rapid.SampledFrom(ranges[store]).Draw(t, "range"),
		Data:    big.NewInt(rapid.Int64Range(0, 300).Draw(t, "bits")).Bytes(),
		Missing: rapid.IntRange(0, 19).Draw(t, "missing") == 0,
	}
	if rapid.IntRange(0, 19).Draw(t, "unread") == 0 {
		b.Problem = "it is truncated"
	}
	return b
}

// change applies one random change.
func (c *model) change(t *rapid.T) {
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0, 1, 2:
		c.putService(anyService(t))
	case 3:
		c.deleteService(key(rapid.SampledFrom(someNames).Draw(t, "name")))
	case 4, 5:
		c.putObject(anyObject(t))
	case 6:
		c.deleteObject(rapid.SampledFrom(append(slices.Clone(someAddresses), "odd")).Draw(t, "address"))
	case 7:
		c.putCIDR(anyCIDR(t))
	case 8:
		if rapid.IntRange(0, 3).Draw(t, "gone") == 0 {
			c.deleteCIDR("more")
		}
	case 9:
		c.putBitmap(anyBitmap(t))
	}
}
