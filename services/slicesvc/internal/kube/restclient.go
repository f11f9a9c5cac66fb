package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// newScheme returns a scheme of the kinds that slicesvc uses, and of the options of their requests.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the kinds of Kubernetes: %w", err)
		}
	}
	return scheme, nil
}

// newSerializer returns codecs that do not convert between versions.
func newSerializer(scheme *runtime.Scheme) runtime.NegotiatedSerializer {
	codecs := serializer.NewCodecFactory(scheme)
	return rest.CodecFactoryForGeneratedClient(scheme, codecs).WithoutConversion()
}

// newRESTClient returns a client of one API group.
func newRESTClient(cfg *rest.Config, group schema.GroupVersion, serializer runtime.NegotiatedSerializer) (rest.Interface, error) {
	own := rest.CopyConfig(cfg)
	own.APIPath = "/apis"
	if group.Group == "" {
		own.APIPath = "/api"
	}
	own.GroupVersion = &group
	own.DisableCompression = true
	own.NegotiatedSerializer = serializer
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("client of the kube-apiserver for %s: %w", group, err)
	}
	return client, nil
}
