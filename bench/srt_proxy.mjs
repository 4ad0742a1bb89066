// Starts sandbox-runtime's HTTP proxy alone: the server that its sandbox would start, with its own allowlist
// matcher and resolved-address guard, without the SOCKS front end and without a per-session password.
//   node srt_proxy.mjs PACKAGE_DIR PORT HOST:PORT...
import { pathToFileURL } from 'node:url'

const [packageDir, port, ...allowed] = process.argv.slice(2)
const load = name => import(pathToFileURL(`${packageDir}/dist/sandbox/${name}.js`).href)
const { createHttpProxyServer } = await load('http-proxy')
const { matchesDomainPatternWithPort } = await load('domain-pattern')
const { createResolvedAddressGuard } = await load('resolved-address-guard')
const { canonicalizeHost } = await load('parent-proxy')

const guard = createResolvedAddressGuard({ allowedDomains: allowed })
const server = createHttpProxyServer({
  filter(targetPort, host) {
    const canonical = canonicalizeHost(host) ?? host
    return allowed.some(entry => matchesDomainPatternWithPort(canonical, targetPort, entry))
  },
  lookupFor: targetPort => guard.lookupFor(targetPort),
})
server.listen(Number(port), '127.0.0.1')
