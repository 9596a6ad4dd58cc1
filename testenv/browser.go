package testenv

import (
	"context"
	"io"
)

// InstallBrowser installs what [Browser] runs, saying so on out before it does. It needs root and Debian's tools.
func InstallBrowser(ctx context.Context, out io.Writer) error {
	return InstallDebian(ctx, out, "chromium", "fonts-dejavu-core")
}

// Browser is the command that opens a page in a real browser, Debian's Chromium, without a window. flags say what it does with
// the page, for example --dump-dom or --screenshot=FILE. dir holds its profile.
func Browser(dir, page string, flags ...string) []string {
	return append(append([]string{
		"env", "HOME=" + dir, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--user-data-dir=" + dir,
		"--disable-background-networking", "--disable-component-update", "--disable-sync", // it asks for nothing but the page
	}, flags...), page)
}
