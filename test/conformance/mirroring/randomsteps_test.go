package mirroring

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// step does something at random. A change that another writer made impossible is left out.
func (h *history) step() {
	kinds := []struct {
		name   string
		weight int
		do     func() error
	}{
		{"Service", 2, h.changeService},
		{"Endpoints", 8, h.changeEndpoints},
		{"description", 2, h.describe},
		{"annotation of a slice", 2, h.annotateSlice},
		{"finalizer of a slice", 1, h.pinSlice},
		{"edited slice", 3, h.editSlice},
		{"deleted slice", 1, h.deleteSlice},
		{"relabelled slice", 1, h.relabelSlice},
		{"foreign slice", 1, h.makeSlice},
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := h.random.IntN(total)
	for _, k := range kinds {
		if n -= k.weight; n >= 0 {
			continue
		}
		err := k.do()
		switch {
		case err == nil:
			h.done[k.name]++
		case errors.Is(err, errNothing), apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err),
			apierrors.IsInvalid(err): // an edit of an edit that is still there
			h.done["(left out)"]++
		default:
			h.t.Fatalf("seed %d: %s: %v", h.seed, k.name, err)
		}
		return
	}
}

// errNothing says that a step has no object to change.
var errNothing = errors.New("there is none")

func (h *history) name() string { return fmt.Sprintf("web-%d", h.random.IntN(5)) }

func (h *history) changeService() error {
	client, name := h.tested.kube.CoreV1().Services(h.namespace), h.name()
	found, err := client.Get(h.ctx(), name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(h.ctx(), service(name), metav1.CreateOptions{})
	case err != nil:
	case h.random.IntN(3) == 0:
		err = client.Delete(h.ctx(), name, metav1.DeleteOptions{})
	default:
		if found.Spec.Selector == nil && h.random.IntN(3) == 0 {
			found.Spec.Selector = map[string]string{"app": name}
		} else {
			found.Spec.Selector = nil
		}
		_, err = client.Update(h.ctx(), found, metav1.UpdateOptions{})
	}
	return err
}

func (h *history) changeEndpoints() error {
	client, name := h.tested.kube.CoreV1().Endpoints(h.namespace), h.name()
	found, err := client.Get(h.ctx(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if _, err := h.tested.kube.CoreV1().Services(h.namespace).Create(h.ctx(), service(name), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		_, err = client.Create(h.ctx(), endpointsOf(name, h.subsets()...), metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if h.random.IntN(8) == 0 {
		return client.Delete(h.ctx(), name, metav1.DeleteOptions{})
	}
	found.Subsets = h.subsets()
	_, err = client.Update(h.ctx(), found, metav1.UpdateOptions{})
	return err
}

func (h *history) subsets() []corev1.EndpointSubset {
	udp := port("dns", 53)
	udp.Protocol = corev1.ProtocolUDP
	pool := []corev1.EndpointPort{port("http", 80), port("http", 8080), udp, app("grpc", 81, "kubernetes.io/h2c"), port("admin", 82)}
	var all []corev1.EndpointSubset
	for range h.random.IntN(4) {
		var some []corev1.EndpointPort
		for _, p := range pool {
			if h.random.IntN(4) == 0 {
				some = append(some, p)
			}
		}
		one := subset(some, nil)
		for range 1 + h.random.IntN(5) {
			if a := h.address(); h.random.IntN(4) == 0 {
				one.NotReadyAddresses = append(one.NotReadyAddresses, a)
			} else {
				one.Addresses = append(one.Addresses, a)
			}
		}
		all = append(all, one)
	}
	return all
}

func (h *history) address() corev1.EndpointAddress {
	n := h.random.IntN(8)
	a := address(fmt.Sprintf("10.1.0.%d", n+1))
	if n > 5 {
		a = address(fmt.Sprintf("fd00::%d", n))
	}
	switch n {
	case 0, 1:
		a = pod(a.IP, fmt.Sprintf("pod-%d", n), fmt.Sprintf("uid-%d-%d", n, h.random.IntN(2)))
	case 2:
		a.Hostname = fmt.Sprintf("host-%d", h.random.IntN(2))
	case 3:
		node := fmt.Sprintf("node-%d", h.random.IntN(2))
		a.NodeName = &node
	}
	return a
}

// describe changes labels and annotations, also those that say that nothing is to be mirrored.
func (h *history) describe() error {
	client, name := h.tested.kube.CoreV1().Endpoints(h.namespace), h.name()
	found, err := client.Get(h.ctx(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	pick := func(values ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(values); i += 2 {
			if h.random.IntN(3) == 0 {
				m[values[i]] = values[i+1]
			}
		}
		return m
	}
	found.Labels = pick("a", "1", "a", "2", "b", "1", corev1.IsHeadlessService, "")
	found.Annotations = pick("x", "1", "x", "2", "y", "1", corev1.LastAppliedConfigAnnotation, "{}")
	switch h.random.IntN(8) {
	case 0:
		found.Labels[discoveryv1.LabelSkipMirror] = "true"
	case 1:
		found.Annotations[leaderAnnotation] = ""
	}
	_, err = client.Update(h.ctx(), found, metav1.UpdateOptions{})
	return err
}

// anySlice picks a slice of the tested controller.
func (h *history) anySlice() (*discoveryv1.EndpointSlice, error) {
	list, err := h.tested.kube.DiscoveryV1().EndpointSlices(h.namespace).List(h.ctx(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelManagedBy + "=" + mirrorManager,
	})
	if err == nil && len(list.Items) == 0 {
		err = errNothing
	}
	if err != nil {
		return nil, err
	}
	return &list.Items[h.random.IntN(len(list.Items))], nil
}

func (h *history) annotateSlice() error {
	slice, err := h.anySlice()
	if err != nil {
		return err
	}
	key := foreignKey + fmt.Sprint(h.random.IntN(3))
	patched, err := h.tested.kube.DiscoveryV1().EndpointSlices(h.namespace).Patch(h.ctx(), slice.Name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"kept"}}}`, key), metav1.PatchOptions{})
	if err == nil {
		h.ledger.annotated(patched.UID, key)
	}
	return err
}

func (h *history) pinSlice() error {
	return h.updateSlice(func(slice *discoveryv1.EndpointSlice) {
		if !slices.Contains(slice.Finalizers, foreignPin) {
			slice.Finalizers = append(slice.Finalizers, foreignPin)
		}
	}, func(updated *discoveryv1.EndpointSlice) { h.ledger.pinned(updated.UID) })
}

// updateSlice changes a slice that nothing else changes meanwhile.
func (h *history) updateSlice(change, after func(*discoveryv1.EndpointSlice)) error {
	slice, err := h.anySlice()
	if err != nil {
		return err
	}
	if slice.DeletionTimestamp != nil {
		return errNothing
	}
	change(slice)
	updated, err := h.tested.kube.DiscoveryV1().EndpointSlices(h.namespace).Update(h.ctx(), slice, metav1.UpdateOptions{})
	if err == nil {
		after(updated)
	}
	return err
}

func (h *history) editSlice() error {
	return h.updateSlice(func(slice *discoveryv1.EndpointSlice) {
		switch h.random.IntN(5) {
		case 0:
			slice.Endpoints = nil
		case 1:
			ready := false
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{map[bool]string{true: "10.6.6.6", false: "fd06::6"}[slice.AddressType == discoveryv1.AddressTypeIPv4]},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		case 2:
			for i := range slice.Endpoints { // as many as before, and one only
				slice.Endpoints[i] = slice.Endpoints[0]
			}
		case 3:
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new("further"), Port: new(int32), Protocol: new(corev1.ProtocolTCP)})
			*slice.Ports[len(slice.Ports)-1].Port = 99
		default:
			slice.Labels["further"] = "label"
		}
	}, func(*discoveryv1.EndpointSlice) {})
}

func (h *history) deleteSlice() error {
	slice, err := h.anySlice()
	if err != nil {
		return err
	}
	return h.tested.kube.DiscoveryV1().EndpointSlices(h.namespace).Delete(h.ctx(), slice.Name, metav1.DeleteOptions{})
}

// relabelSlice gives a slice another manager. It is no business of the tested controller any more.
func (h *history) relabelSlice() error {
	return h.updateSlice(func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelManagedBy] = "another-manager" },
		func(updated *discoveryv1.EndpointSlice) { h.ledger.released(updated) })
}

// makeSlice makes a slice that looks like one of the tested controller.
func (h *history) makeSlice() error {
	slice, err := h.anySlice()
	if err != nil {
		return err
	}
	_, err = h.tested.kube.DiscoveryV1().EndpointSlices(h.namespace).Create(h.ctx(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{GenerateName: "made-", Labels: slice.Labels},
		AddressType: slice.AddressType, Ports: slice.Ports, Endpoints: slice.Endpoints,
	}, metav1.CreateOptions{})
	return err
}
