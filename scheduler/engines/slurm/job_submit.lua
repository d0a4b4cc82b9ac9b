-- Counts the bandwidth of Larder's jobs in Slurm's licences: docs/slurm.md#licences. Lua 5.1.
-- A site with a job_submit.lua of its own calls larder_add_licences from there.

local program = os.getenv("LARDER_SLURM") or "larder-slurm"

local function quoted(word)
    return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

-- Adds the licence remoteio:N to a job whose script has bandwidth=. The job may ask for further licences itself.
-- slurmctld waits for this: larder-slurm ends after 80 ms at the latest.
function larder_add_licences(job_desc)
    local script = job_desc.script
    if not script or not ("\n" .. script):find("\n#BB_LUA%s+larder%s[^\n]*bandwidth=") then return slurm.SUCCESS end
    if (job_desc.licenses or ""):find("remoteio", 1, true) then
        slurm.log_user("larder: remoteio follows from bandwidth= in the script: ask for no such licence")
        return slurm.ERROR
    end
    local path = os.tmpname()
    local file = io.open(path, "w")
    file:write(script)
    file:close()
    local pipe = io.popen(quoted(program) .. " licences " .. quoted(path) .. " 2>&1 </dev/null", "r")
    local answer = pipe and pipe:read("*a") or ""
    if pipe then pipe:close() end
    os.remove(path)
    local licences = answer:match("^ok\n(.-)%s*$")
    if not licences then
        slurm.log_user("larder: %s", (answer:gsub("^error\n", ""):gsub("%s+$", "")))
        return slurm.ERROR
    end
    if licences ~= "" then
        local own = job_desc.licenses or ""
        job_desc.licenses = own == "" and licences or own .. "," .. licences
    end
    return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    return larder_add_licences(job_desc)
end

-- A user who could change the licences would undo the count. SlurmUser and root may.
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if modify_uid ~= 0 and job_desc.licenses then
        return slurm.ESLURM_INVALID_LICENSES
    end
    return slurm.SUCCESS
end
