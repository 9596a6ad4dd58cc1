package compose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// serviceImage is a service's image for its platform.
func (t *translation) serviceImage(service *composefile.Node) workload.Image {
	if service.Get("image").IsNull() && t.omitted[service.Path+".image"] {
		return workload.Image{}
	}
	p := service.Get("platform")
	want := t.Text(p)
	if want == "" {
		return t.image(service, service.Get("image"))
	}
	if !platformName.MatchString(want) {
		t.Fault(p, "write it as linux/arm64", "%q is no platform", composefile.Clip(want))
		return workload.Image{}
	}
	device := t.platform
	if device != "" && !slices.Contains(runnable(device), canonical(want)) {
		t.unfit = append(t.unfit, fmt.Sprintf("%s: made for %s, not %s", service.Path, want, device))
		return workload.Image{}
	}
	if t.platform != "" {
		t.platform = canonical(want)
		defer func() { t.platform = device }()
	}
	return t.image(service, service.Get("image"))
}

var platformName = strict.Expression(`^linux/[a-z0-9_]+(/[a-z0-9]+)?$`)

// image pins an image: by the archive's lock, else by the digest in the reference itself.
func (t *translation) image(service, n *composefile.Node) workload.Image {
	if n.IsNull() || n.Text() == "" {
		t.Fault(service, "", "there is no image")
		return workload.Image{}
	}
	ref := t.Text(n)
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		hint := ""
		if strings.Contains(ref, "://") {
			hint = "write host/path:tag, without a scheme"
		}
		t.Fault(n, hint, "%q: %v", ref, err)
		return workload.Image{}
	}
	image := workload.Image{Repository: named.Name(), Platform: t.platform}
	if tagged, ok := named.(reference.Tagged); ok {
		image.Tag = tagged.Tag()
	}
	if digested, ok := named.(reference.Digested); ok {
		if !t.CheckPin(n, named) {
			return workload.Image{}
		}
		image.Digest = digested.Digest()
	} else if image.Tag == "" {
		image.Tag = "latest"
	}
	if locked, ok := t.locked(ref); ok {
		if image.Digest != "" && image.Digest != locked.Digest {
			t.Fault(n, "push the component again", "the lock has %s", locked.Digest)
		}
		image.Digest = locked.Digest
		image.Size = t.fit(service, ref, locked)
	}
	if image.Digest == "" && !t.unpinned {
		t.Fault(n, "push the component with longshore component push, which resolves and locks its images", "%s is not pinned by a digest", ref)
	}
	return image
}

func (t *translation) locked(ref string) (artifacts.LockedImage, bool) {
	if t.lock == nil {
		return artifacts.LockedImage{}, false
	}
	i := slices.IndexFunc(t.lock.Images, func(l artifacts.LockedImage) bool { return l.Reference == ref })
	if i < 0 {
		return artifacts.LockedImage{}, false
	}
	return t.lock.Images[i], true
}

// fit finds the platform's size, and notes an image that is not made for it.
func (t *translation) fit(service *composefile.Node, ref string, locked artifacts.LockedImage) int64 {
	if t.platform == "" || len(locked.Platforms) == 0 {
		return 0
	}
	var have []string
	for _, want := range runnable(t.platform) {
		for _, p := range locked.Platforms {
			if canonical(p.Platform) == want {
				return p.Size
			}
		}
	}
	for _, p := range locked.Platforms {
		have = append(have, p.Platform)
	}
	t.unfit = append(t.unfit, fmt.Sprintf("%s: image %s has %s, not %s", service.Path, ref, strings.Join(have, ", "), t.platform))
	return 0
}

func (t *translation) fits() error {
	if len(t.unfit) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(t.unfit, "; "), fault.ErrUnfit)
}

// canonical removes or adds the variant that is the default.
func canonical(platform string) string {
	switch platform {
	case "linux/arm64/v8":
		return "linux/arm64"
	case "linux/arm":
		return "linux/arm/v7"
	}
	return platform
}

// runnable lists the platforms that a machine runs, best first: newer 32-bit ARM also runs images for older.
func runnable(platform string) []string {
	platform = canonical(platform)
	all := []string{"linux/arm/v8", "linux/arm/v7", "linux/arm/v6", "linux/arm/v5"}
	if i := slices.Index(all, platform); i >= 0 {
		return all[i:]
	}
	return []string{platform}
}
